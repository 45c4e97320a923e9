"""Which limits stand in the way of unmet work: it is planned again with one limit lifted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import InstanceSelector
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
    """Answers for each unmet row, from what the plan left of the limits."""

    def __init__(
        self, space: ResourceSpace, selector: InstanceSelector, rows: Sequence[UnmetItems]
    ) -> None:
        self._space = space
        self._selector = selector
        self._rows = rows

    def binding(self, row: UnmetItems) -> BindingLimits:
        """The fewest limits to raise so that the row can be met beside the other unmet rows."""
        types = tuple(sorted(t for t in row.types if t in self._selector.remaining_by_type))
        together = [row]
        if len(self._rows) <= _MAX_ROWS_TOGETHER:
            together += [r for r in self._rows if r is not row and r.types & row.types]
        if self._can_meet(together, lifts_cluster=True, lifted_types=()):
            return BindingLimits(True, ())
        if self._can_meet(together, lifts_cluster=False, lifted_types=types):
            return BindingLimits(False, types)
        return BindingLimits(True, types)

    def _can_meet(
        self, rows: Sequence[UnmetItems], *, lifts_cluster: bool, lifted_types: Collection[str]
    ) -> bool:
        by_type = {
            name: _UNLIMITED if name in lifted_types else n
            for name, n in self._selector.remaining_by_type.items()
        }
        remaining = _UNLIMITED if lifts_cluster else self._selector.remaining
        selector = InstanceSelector(self._space, self._selector.all_options, by_type, remaining)
        free_capacity = FreeCapacity(self._space)
        for row in rows:
            for left in range(min(row.gangs, _MAX_SPREAD_GANGS), 0, -1):
                choices = selector.choices(row.items, left)
                launched = place_gang(free_capacity, row.items, choices)
                if launched is None:
                    return False
                for option, n in launched.items():
                    selector.add(option, n)
        items = [item for row in rows if not row.gangs for item in row.items]
        return selector.select_all(items) is not None
