"""The cheapest launches for a small case, by trying everything that is cheaper than a known plan.

Shares no code with the planner, so that it can check it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.planner_bench.scenarios import Scenario
from shoal.scaling import Demand, Gang, Plan, Request, Shape, Strategy
from shoal.scaling.demand import floor_name

Resources = Mapping[str, float]
_UNIT = 10_000


def optimum(
    instance_types: Sequence[tuple[Resources, float]],
    demand: Sequence[tuple[Resources, int]],
    upper_bound: float,
) -> float:
    """The lowest price at which everything fits; `upper_bound` is a price at which it does."""
    names = sorted({name for need, _ in demand for name in need})

    def vector(amounts: Resources) -> tuple[int, ...]:
        return tuple(round(amounts.get(n, 0.0) * _UNIT) for n in names)

    types = sorted((price, vector(resources)) for resources, price in instance_types)
    tasks = sorted((vector(need) for need, n in demand for _ in range(n)), reverse=True)
    total = [sum(task[r] for task in tasks) for r in range(len(names))]
    best = upper_bound

    def mixes(first: int, chosen: list[tuple[int, ...]], cost: float) -> None:
        nonlocal best
        capacity = [sum(c[r] for c in chosen) for r in range(len(names))]
        if all(h >= t for h, t in zip(capacity, total, strict=True)) and _packs(tasks, chosen):
            best = cost
            return
        for index in range(first, len(types)):
            price, free = types[index]
            if cost + price < best - 1e-9:
                mixes(index, [*chosen, free], cost + price)

    mixes(0, [], 0.0)
    return best


def _packs(tasks: Sequence[tuple[int, ...]], bins: Sequence[tuple[int, ...]]) -> bool:
    """Whether the tasks fit, trying every bin for each; states that failed are not tried again."""
    failed: set[tuple[int, tuple[tuple[int, ...], ...]]] = set()

    def place(index: int, free: tuple[tuple[int, ...], ...]) -> bool:
        if index == len(tasks):
            return True
        if (index, free) in failed:
            return False
        task = tasks[index]
        for b in range(len(free)):
            if (b and free[b] == free[b - 1]) or any(
                n > f for n, f in zip(task, free[b], strict=True)
            ):
                continue
            left = tuple(f - n for n, f in zip(task, free[b], strict=True))
            if place(index + 1, tuple(sorted((*free[:b], left, *free[b + 1 :])))):
                return True
        failed.add((index, free))
        return False

    return place(0, tuple(sorted(bins)))


Vector = tuple[int, ...]
_MAX_STEPS = 200_000


class TooLarge(Exception):
    """The case has too many placements to try them all."""


@dataclass(frozen=True)
class _Bin:
    free: Vector
    labels: Mapping[str, str]


@dataclass(frozen=True)
class _Piece:
    """Something to place on one node; pieces of the same gang above 0 need different nodes."""

    need: Vector
    shapes: tuple[Shape, ...]
    gang: int


def cheaper_launches(
    case: Scenario, max_nodes: int, price: float, machines: int
) -> Mapping[str, int] | None:
    """Up to `max_nodes` launches that meet everything within the limits at a lower price, or at
    this price with fewer machines; None if there are none. Tries all of them."""
    search = _ScenarioSearch(case)
    if not search.could_meet_all():
        return None
    for launches in sorted(search.sets(max_nodes, price), key=search.cost):
        is_cheaper = search.cost(launches)[0] < price - 1e-9
        if (is_cheaper or sum(launches.values()) < machines) and search.meets_all(launches):
            return launches
    return None


def holds_what_it_counts(case: Scenario, planned: Plan) -> bool:
    """Whether the existing nodes and the launches of a plan hold, within the limits, everything
    that the plan does not report as unmet."""
    left = Counter({row.subject: row.count for row in planned.unmet})

    def met(subject: str, count: int) -> int:
        missing = min(count, left[subject])
        left[subject] -= missing
        return count - missing

    demand = case.demand
    gangs = [Gang(tuple(sorted(g.bundles)), g.strategy, g.count) for g in demand.gangs]
    met_demand = Demand(
        tuple(Request(r.shape, met(str(r.shape), r.count)) for r in demand.requests),
        tuple(replace(g, count=met(str(replace(g, count=1)), g.count)) for g in gangs),
        tuple(Request(r.shape, met(floor_name(r.shape), r.count)) for r in demand.floors),
    )
    search = _ScenarioSearch(replace(case, demand=met_demand))
    launches = Counter(dict.fromkeys(case.prices, 0))
    for launch in planned.launches:
        launches[launch.node_type] += launch.count
    return not any(left.values()) and search.allows(launches) and search.meets_all(launches)


class _ScenarioSearch:
    """Tries sets of launches for a scenario, and all placements on each."""

    def __init__(self, case: Scenario) -> None:
        self._case = case
        demand = case.demand
        shapes = [r.shape for r in (*demand.requests, *demand.floors)]
        shapes += [b for g in demand.gangs for b in g.bundles]
        self._names = sorted({name for s in shapes for name, _ in s.resources})
        tasks = [
            _Piece(self._need([r.shape]), (r.shape,), 0)
            for r in demand.requests
            for _ in range(r.count)
        ]
        floors = [
            _Piece(self._need([r.shape]), (r.shape,), 0)
            for r in demand.floors
            for _ in range(r.count)
        ]
        number = 0
        for gang in demand.gangs:
            for _ in range(gang.count):
                number += 1
                spread = number if gang.strategy is Strategy.STRICT_SPREAD else 0
                if gang.strategy is Strategy.STRICT_PACK:
                    tasks.append(_Piece(self._need(gang.bundles), gang.bundles, 0))
                else:
                    tasks += [_Piece(self._need([b]), (b,), spread) for b in gang.bundles]
        self._tasks, self._floors = _hardest_first(tasks), _hardest_first(floors)

    def cost(self, launches: Mapping[str, int]) -> tuple[float, int]:
        """The price of a set, and its number of machines."""
        price = sum(self._case.prices[name] * n for name, n in launches.items())
        return price, sum(launches.values())

    def allows(self, launches: Mapping[str, int]) -> bool:
        """Whether the limits allow a set."""
        spec = self._case.spec
        workers = Counter(n.node_type for n in self._case.nodes)
        workers.update(launches)
        return sum(workers.values()) <= spec.scaling.max_workers and all(
            n <= spec.node_types[name].max_workers for name, n in workers.items()
        )

    def sets(self, max_nodes: int, price: float) -> list[dict[str, int]]:
        """All sets that the limits allow and that cost no more than this."""
        spec = self._case.spec
        existing = Counter(n.node_type for n in self._case.nodes)
        total = min(max_nodes, spec.scaling.max_workers - sum(existing.values()))
        sets: list[dict[str, int]] = [{}]
        for name, node_price in self._case.prices.items():
            most = max(0, spec.node_types[name].max_workers - existing[name])
            sets = [
                {**chosen, name: n}
                for chosen in sets
                for n in range(min(most, total - sum(chosen.values())) + 1)
                if self.cost(chosen)[0] + n * node_price <= price + 1e-9
            ]
        return sets

    def could_meet_all(self) -> bool:
        """Whether each piece of the demand fits on some node alone."""
        types = [t for t in self._case.spec.node_types.values() if t.max_workers]
        bins = [_Bin(self._vector(t.resources), t.labels) for t in types]
        bins += [_Bin(self._vector(n.total), n.labels) for n in self._case.nodes]
        pieces = {*self._floors, *self._tasks}
        return all(any(_holds(b, piece) for b in bins) for piece in pieces)

    def meets_all(self, launches: Mapping[str, int]) -> bool:
        """Whether floors and work fit, each on their own."""
        spec = self._case.spec
        new = [
            _Bin(self._vector(spec.node_types[name].resources), spec.node_types[name].labels)
            for name, n in launches.items()
            for _ in range(n)
        ]
        total = [_Bin(self._vector(n.total), n.labels) for n in self._case.nodes]
        free = [_Bin(self._vector(n.available), n.labels) for n in self._case.nodes]
        return _fits(self._floors, [*total, *new]) and _fits(self._tasks, [*free, *new])

    def _vector(self, amounts: Resources) -> Vector:
        return tuple(round(amounts.get(name, 0.0) * _UNIT) for name in self._names)

    def _need(self, shapes: Sequence[Shape]) -> Vector:
        vectors = [self._vector(dict(s.resources)) for s in shapes]
        return tuple(sum(column) for column in zip(*vectors, strict=True))


def _hardest_first(pieces: Sequence[_Piece]) -> list[_Piece]:
    return sorted(pieces, key=lambda p: (-p.gang, [-n for n in p.need], str(p.shapes)))


def _holds(bin_: _Bin, piece: _Piece) -> bool:
    return all(n <= f for n, f in zip(piece.need, bin_.free, strict=True)) and all(
        shape.matches(bin_.labels) for shape in piece.shapes
    )


def _fits(pieces: Sequence[_Piece], bins: Sequence[_Bin]) -> bool:
    """Whether all pieces fit, trying every bin for each; states that failed are not tried again."""
    matches = [
        [all(shape.matches(b.labels) for shape in piece.shapes) for b in bins] for piece in pieces
    ]
    failed: set[object] = set()
    steps = _MAX_STEPS

    def place(index: int, free: tuple[Vector, ...], used: frozenset[int]) -> bool:
        """`used` are the bins that hold a piece of the current gang."""
        nonlocal steps
        if index == len(pieces):
            return True
        steps -= 1
        if not steps:
            raise TooLarge
        piece = pieces[index]
        if index and piece.gang != pieces[index - 1].gang:
            used = frozenset()
        kinds = ((room, str(bins[i].labels), i in used) for i, room in enumerate(free))
        state = (index, tuple(sorted(kinds)))
        if state in failed:
            return False
        tried: set[object] = set()
        for i, room in enumerate(free):
            same = (room, str(bins[i].labels), i in used)
            if same in tried or not matches[index][i] or (piece.gang and i in used):
                continue
            tried.add(same)
            if all(n <= f for n, f in zip(piece.need, room, strict=True)):
                left = tuple(f - n for n, f in zip(piece.need, room, strict=True))
                now_used = used | {i} if piece.gang else used
                if place(index + 1, (*free[:i], left, *free[i + 1 :]), now_used):
                    return True
        failed.add(state)
        return False

    capacity = [sum(column) for column in zip(*(b.free for b in bins), strict=True)]
    needed = [sum(column) for column in zip(*(p.need for p in pieces), strict=True)]
    if pieces and (not bins or any(n > c for n, c in zip(needed, capacity, strict=True))):
        return False
    return place(0, tuple(b.free for b in bins), frozenset())
