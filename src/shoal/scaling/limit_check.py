"""Which limits stand in the way of unmet work: it is planned again with one limit lifted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shoal.scaling.bin_packing import pack
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import InstanceSelector, add_selection
from shoal.scaling.offerings import InstanceOption
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.strict_spread import place_gang

_UNLIMITED = 10**9
# With more unmet rows than this, each is checked without the others.
_MAX_ROWS_TOGETHER = 20
_MAX_SPREAD_GANGS = 20


@dataclass(frozen=True)
class UnmetItems:
    """What one row of unmet work needs: items, or `gangs` STRICT_SPREAD gangs with these bundles;
    and the node types that can hold any of it."""

    items: tuple[Item, ...]
    gangs: int
    types: frozenset[str]


@dataclass(frozen=True)
class BindingLimits:
    """Whether the cluster's `max_workers` is in the way, and that of which node types."""

    cluster: bool
    types: tuple[str, ...]


class LimitCheck:
    """Answers for each unmet row, from what the plan left of the limits. `options` are the
    instances that there are to launch; `minimums` are those that come first, by node type."""

    def __init__(
        self,
        space: ResourceSpace,
        selector: InstanceSelector,
        options: Sequence[InstanceOption],
        rows: Sequence[UnmetItems],
        minimums: Mapping[str, int] | None = None,
    ) -> None:
        self._space = space
        self._selector = selector
        self._options = options
        self._rows = rows
        self._minimums = minimums or {}

    def binding(self, row: UnmetItems) -> BindingLimits:
        """The fewest limits to raise so that the row can be met beside the other unmet rows."""
        types = tuple(sorted(t for t in row.types if t in self._selector.remaining_by_type))
        has_type = any(self._selector.remaining_by_type[t] > 0 for t in types)
        if has_type and self._can_meet(row, lifts_cluster=True, lifted_types=()):
            return BindingLimits(True, ())
        has_any = self._selector.remaining > 0
        if has_any and self._can_meet(row, lifts_cluster=False, lifted_types=types):
            return BindingLimits(False, types)
        return BindingLimits(True, types)

    def allow(self, row: UnmetItems) -> bool:
        """Whether the limits allow instances for the row beside the other unmet rows."""
        return self._can_meet(row, lifts_cluster=False, lifted_types=())

    def _can_meet(
        self, row: UnmetItems, *, lifts_cluster: bool, lifted_types: Collection[str]
    ) -> bool:
        together, others = self._competing(row)
        by_type = {
            name: _UNLIMITED if name in lifted_types else n
            for name, n in self._selector.remaining_by_type.items()
        }
        remaining = _UNLIMITED if lifts_cluster else self._selector.remaining
        if others and not lifts_cluster:
            remaining -= self._instances_for_others(others)
        return self._instances_for(together, by_type, remaining, self._minimums) is not None

    def _competing(self, row: UnmetItems) -> tuple[list[UnmetItems], list[UnmetItems]]:
        """The rows that compete with this one for node types, itself included, directly or through
        other rows; and those that compete only for the limit of the cluster."""
        if len(self._rows) > _MAX_ROWS_TOGETHER:
            return [row], []
        together, types = [row], row.types
        others = [r for r in self._rows if r is not row]
        while more := [r for r in others if r.types & types]:
            together += more
            types = types.union(*(r.types for r in more))
            others = [r for r in others if r not in more]
        return together, others

    def _instances_for_others(self, rows: Sequence[UnmetItems]) -> int:
        """How many instances the limits of their node types allow these rows to take."""
        by_type = self._selector.remaining_by_type
        instances = self._instances_for(rows, by_type, _UNLIMITED, {})
        if instances is not None:
            return instances
        return sum(by_type.get(name, 0) for name in frozenset().union(*(r.types for r in rows)))

    def _instances_for(
        self,
        rows: Sequence[UnmetItems],
        by_type: Mapping[str, int],
        remaining: int,
        minimums: Mapping[str, int],
    ) -> int | None:
        """How many instances meet all of these rows and the minimums within these limits; None if
        none do."""
        selector = InstanceSelector(self._space, self._options, by_type, remaining)
        free_capacity = FreeCapacity(self._space)
        _add_minimums(selector, free_capacity, minimums)
        for row in rows:
            for left in range(min(row.gangs, _MAX_SPREAD_GANGS), 0, -1):
                choices = selector.choices(row.items, left)
                launched = place_gang(free_capacity, row.items, choices)
                if launched is None:
                    return None
                for option, n in launched.items():
                    selector.add(option, n)
        items = [item for row in rows if not row.gangs for item in row.items]
        if minimums:
            unplaced = pack(free_capacity, items)
            items = [self._space.resized(i, n) for i, n in zip(items, unplaced, strict=True)]
        return None if selector.select_all(items) is None else remaining - selector.remaining


def _add_minimums(
    selector: InstanceSelector, free_capacity: FreeCapacity, minimums: Mapping[str, int]
) -> None:
    """They come first: they use up limits, and offer their capacity."""
    lacking = dict(minimums)
    for index, option in enumerate(selector.options):
        name = option.node_type
        allowed = min(selector.remaining, selector.remaining_by_type[name])
        n = min(lacking.get(name, 0), allowed)
        if n > 0:
            lacking[name] -= n
            add_selection(free_capacity, selector.add(index, n))
