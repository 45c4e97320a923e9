"""The demand encoded for packing: equal shapes merged, gangs grouped, similar shapes combined.

The result depends on the content of the demand, never on its order.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal.scaling.demand import Demand, Gang, Request, Shape, Strategy
from shoal.scaling.resource_vectors import Item, ResourceSpace

# More distinct shapes than this are grouped by size.
MAX_SHAPES = 1_000
_MAX_INFEASIBLE_KEPT = 100
_MAX_ALTERNATIVES = 64


@dataclass(frozen=True)
class SingleNodeItem:
    """Equal tasks, actors, or STRICT_PACK gangs that each need one node. A gang has `bundles`."""

    item: Item
    shape: Shape
    subject: str
    bundles: int = 1


@dataclass(frozen=True)
class GangGroup:
    """`count` equal gangs with bundles on several nodes. `bundles` are one gang's items, each
    counted as often as one gang has it."""

    gang: Gang
    bundles: tuple[Item, ...]
    shapes: tuple[Shape, ...]
    count: int

    @property
    def strict_spread(self) -> bool:
        """Whether no two bundles of a gang may share a node."""
        return self.gang.strategy is Strategy.STRICT_SPREAD

    def single_bundles(self) -> list[Item]:
        """The bundles of one gang, one by one."""
        return [item for item in self.bundles for _ in range(item.count)]

    def bundles_of(self, space: ResourceSpace, gangs: int) -> list[Item]:
        """The bundles of this many gangs."""
        return [space.resized(item, item.count * gangs) for item in self.bundles]


@dataclass(frozen=True)
class Workload:
    """Everything to place, encoded. `shapes_left_out` counts shapes beyond the limit on distinct
    shapes."""

    tasks: tuple[SingleNodeItem, ...]
    strict_pack_gangs: tuple[SingleNodeItem, ...]
    gang_groups: tuple[GangGroup, ...]
    floors: tuple[SingleNodeItem, ...]
    shapes_left_out: int = 0


def shapes_of(demand: Demand) -> list[Shape]:
    """Every shape that the demand can lead to."""
    shapes = {r.shape for r in demand.requests} | {r.shape for r in demand.floors}
    for gang in demand.gangs:
        shapes.update(gang.bundles)
        if gang.strategy is Strategy.STRICT_PACK:
            shapes.add(merged_bundles(gang.bundles))
    return sorted(shapes)


def encode(space: ResourceSpace, demand: Demand, is_feasible: Callable[[Shape], bool]) -> Workload:
    """Encode the demand in this resource space. `is_feasible` says whether any node type can hold a
    shape."""
    gangs = _merge_gangs(demand.gangs)
    tasks = _merge_requests(demand.requests)
    floors = _merge_requests(demand.floors)
    limited_tasks, limited_floors = _limited(tasks, is_feasible), _limited(floors, is_feasible)
    return Workload(
        tasks=_single_items(space, limited_tasks.planned),
        strict_pack_gangs=tuple(
            SingleNodeItem(
                space.item(merged_bundles(gang.bundles), n),
                merged_bundles(gang.bundles),
                str(gang),
                len(gang.bundles),
            )
            for gang, n in gangs
            if gang.strategy is Strategy.STRICT_PACK
        ),
        gang_groups=tuple(
            _gang_group(space, gang, n)
            for gang, n in gangs
            if gang.strategy is not Strategy.STRICT_PACK
        ),
        floors=_single_items(space, limited_floors.planned),
        shapes_left_out=limited_tasks.left_out + limited_floors.left_out,
    )


def merged_bundles(bundles: Sequence[Shape]) -> Shape:
    """All bundles as one shape, for a STRICT_PACK gang."""
    total: Counter[str] = Counter()
    for bundle in bundles:
        for name, amount in bundle.resources:
            total[name] += amount  # type: ignore[assignment]
    choices = sorted({b.selectors for b in bundles if b.selectors})
    combined = itertools.islice(itertools.product(*choices), _MAX_ALTERNATIVES)
    return Shape.of(total, [itertools.chain(*rules) for rules in combined] if choices else ())


def _merge_requests(requests: Iterable[Request]) -> list[Request]:
    counts: Counter[Shape] = Counter()
    for request in requests:
        counts[request.shape] += request.count
    # A task that needs nothing runs anywhere, at least on the head.
    return [Request(s, n) for s, n in sorted(counts.items()) if n and (s.resources or s.selectors)]


def _merge_gangs(gangs: Iterable[Gang]) -> list[tuple[Gang, int]]:
    counts: Counter[tuple[tuple[Shape, ...], str]] = Counter()
    for gang in gangs:
        bundles = tuple(sorted(b for b in gang.bundles if b.resources or b.selectors))
        if bundles:
            counts[bundles, gang.strategy.value] += gang.count
    return [(Gang(b, Strategy(s)), n) for (b, s), n in sorted(counts.items()) if n]


def _gang_group(space: ResourceSpace, gang: Gang, count: int) -> GangGroup:
    shapes = sorted(Counter(gang.bundles).items())
    return GangGroup(
        gang, tuple(space.item(s, n) for s, n in shapes), tuple(s for s, _ in shapes), count
    )


def _single_items(space: ResourceSpace, requests: Iterable[Request]) -> tuple[SingleNodeItem, ...]:
    return tuple(
        SingleNodeItem(space.item(r.shape, r.count), r.shape, str(r.shape)) for r in requests
    )


@dataclass(frozen=True)
class _LimitedRequests:
    planned: list[Request]
    left_out: int = 0


def _limited(requests: list[Request], is_feasible: Callable[[Shape], bool]) -> _LimitedRequests:
    """At most MAX_SHAPES feasible shapes: similar ones are planned as the largest of them, in
    coarser and coarser groups until there are few enough. Of the infeasible ones, some are kept, so
    that the user sees what is wrong."""
    if len(requests) <= MAX_SHAPES:
        return _LimitedRequests(requests)
    feasible = [r for r in requests if is_feasible(r.shape)]
    infeasible = [r for r in requests if not is_feasible(r.shape)]
    for step in (1.05, 1.2, 1.5, 2.0, 4.0, 16.0):
        grouped: dict[object, list[Request]] = {}
        for request in feasible:
            grouped.setdefault(_size_class(request.shape, step), []).append(request)
        if len(grouped) <= MAX_SHAPES:
            break
    merged = sorted(_as_largest(group) for group in grouped.values())
    planned = merged[:MAX_SHAPES] + infeasible[:_MAX_INFEASIBLE_KEPT]
    return _LimitedRequests(planned, len(merged) + len(infeasible) - len(planned))


def _as_largest(group: list[Request]) -> Request:
    largest = max(group, key=lambda r: ([amount for _, amount in r.shape.resources], r.shape))
    return Request(largest.shape, sum(r.count for r in group))


def _size_class(shape: Shape, step: float) -> object:
    magnitudes = tuple((name, math.ceil(math.log(n, step))) for name, n in shape.resources)
    return magnitudes, shape.selectors
