"""Demand as the packer sees it: equal shapes merged, gangs grouped, too many kinds made fewer.

The result depends on what is asked for, never on the order in which it was listed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal.scaling.demand import Demand, Gang, Request, Shape, Strategy
from shoal.scaling.resource_vectors import Item, ResourceSpace

# More kinds of shapes than this are planned in groups of neighbours.
MOST_KINDS = 1_000
_MOST_NAMED = 100
_MOST_ALTERNATIVES = 64


@dataclass(frozen=True)
class SingleNodeItem:
    """Equal things that each need one node: tasks, actors, or a gang that shares a node."""

    item: Item
    shape: Shape
    subject: str


@dataclass(frozen=True)
class GangGroup:
    """Equal gangs with bundles on several nodes: `bundles` are one gang's items, each with how
    many of it one gang has. `apart` means that no two may share a node."""

    gang: Gang
    bundles: tuple[Item, ...]
    shapes: tuple[Shape, ...]
    count: int

    @property
    def apart(self) -> bool:
        return self.gang.strategy is Strategy.STRICT_SPREAD

    def singles(self) -> list[Item]:
        """One gang's bundles one by one."""
        return [item for item in self.bundles for _ in range(item.count)]

    def items(self, frame: ResourceSpace, gangs: int) -> list[Item]:
        """The bundles of so many gangs."""
        return [frame.resized(item, item.count * gangs) for item in self.bundles]


@dataclass(frozen=True)
class Workload:
    """All that is to be placed, encoded; of kinds that are left out there are too many."""

    tasks: tuple[SingleNodeItem, ...]
    packed_gangs: tuple[SingleNodeItem, ...]
    teams: tuple[GangGroup, ...]
    floors: tuple[SingleNodeItem, ...]
    kinds_left_out: int = 0


def shapes_of(demand: Demand) -> list[Shape]:
    """Every shape that the demand can lead to."""
    shapes = {r.shape for r in demand.requests} | {r.shape for r in demand.floors}
    for gang in demand.gangs:
        shapes.update(gang.bundles)
        if gang.strategy is Strategy.STRICT_PACK:
            shapes.add(joined(gang.bundles))
    return sorted(shapes)


def encode(frame: ResourceSpace, demand: Demand, feasible: Callable[[Shape], bool]) -> Workload:
    """The demand in the frame's terms. `feasible` tells which shapes any machine could hold."""
    gangs = _merged_gangs(demand.gangs)
    tasks = _merged(demand.requests)
    floors = _merged(demand.floors)
    fewer_tasks, fewer_floors = _fewer(tasks, feasible), _fewer(floors, feasible)
    return Workload(
        tasks=_loose(frame, fewer_tasks.planned),
        packed_gangs=tuple(
            SingleNodeItem(frame.item(joined(gang.bundles), n), joined(gang.bundles), str(gang))
            for gang, n in gangs
            if gang.strategy is Strategy.STRICT_PACK
        ),
        teams=tuple(
            _team(frame, gang, n) for gang, n in gangs if gang.strategy is not Strategy.STRICT_PACK
        ),
        floors=_loose(frame, fewer_floors.planned),
        kinds_left_out=fewer_tasks.left_out + fewer_floors.left_out,
    )


def joined(bundles: Sequence[Shape]) -> Shape:
    """All bundles as one shape, for a gang that must share a node."""
    total: Counter[str] = Counter()
    for bundle in bundles:
        for name, amount in bundle.resources:
            total[name] += amount  # type: ignore[assignment]
    choices = sorted({b.selectors for b in bundles if b.selectors})
    combined = itertools.islice(itertools.product(*choices), _MOST_ALTERNATIVES)
    return Shape.of(total, [itertools.chain(*rules) for rules in combined] if choices else ())


def _merged(requests: Iterable[Request]) -> list[Request]:
    counts: Counter[Shape] = Counter()
    for request in requests:
        counts[request.shape] += request.count
    # A task that needs nothing runs anywhere, and the head is always there.
    return [Request(s, n) for s, n in sorted(counts.items()) if n and (s.resources or s.selectors)]


def _merged_gangs(gangs: Iterable[Gang]) -> list[tuple[Gang, int]]:
    counts: Counter[tuple[tuple[Shape, ...], str]] = Counter()
    for gang in gangs:
        bundles = tuple(sorted(b for b in gang.bundles if b.resources or b.selectors))
        if bundles:
            counts[bundles, gang.strategy.value] += gang.count
    return [(Gang(b, Strategy(s)), n) for (b, s), n in sorted(counts.items()) if n]


def _team(frame: ResourceSpace, gang: Gang, count: int) -> GangGroup:
    kinds = sorted(Counter(gang.bundles).items())
    return GangGroup(
        gang, tuple(frame.item(s, n) for s, n in kinds), tuple(s for s, _ in kinds), count
    )


def _loose(frame: ResourceSpace, requests: Iterable[Request]) -> tuple[SingleNodeItem, ...]:
    return tuple(
        SingleNodeItem(frame.item(r.shape, r.count), r.shape, str(r.shape)) for r in requests
    )


@dataclass(frozen=True)
class _Fewer:
    planned: list[Request]
    left_out: int = 0


def _fewer(requests: list[Request], feasible: Callable[[Shape], bool]) -> _Fewer:
    """At most MOST_KINDS kinds that can be placed: neighbours are planned as the largest of
    them, in coarser and coarser neighbourhoods until there are few enough. Of those that cannot
    be placed, some are enough to tell a person what is wrong."""
    if len(requests) <= MOST_KINDS:
        return _Fewer(requests)
    possible = [r for r in requests if feasible(r.shape)]
    impossible = [r for r in requests if not feasible(r.shape)]
    for step in (1.05, 1.2, 1.5, 2.0, 4.0, 16.0):
        grouped: dict[object, list[Request]] = {}
        for request in possible:
            grouped.setdefault(_neighbourhood(request.shape, step), []).append(request)
        if len(grouped) <= MOST_KINDS:
            break
    merged = sorted(_as_largest(group) for group in grouped.values())
    planned = merged[:MOST_KINDS] + impossible[:_MOST_NAMED]
    return _Fewer(planned, len(merged) + len(impossible) - len(planned))


def _as_largest(group: list[Request]) -> Request:
    largest = max(group, key=lambda r: ([amount for _, amount in r.shape.resources], r.shape))
    return Request(largest.shape, sum(r.count for r in group))


def _neighbourhood(shape: Shape, step: float) -> object:
    places = tuple((name, math.ceil(math.log(n, step))) for name, n in shape.resources)
    return places, shape.selectors
