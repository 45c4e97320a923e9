"""Instances for gangs that do not fit: for whole gangs, or none."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.bin_packing import pack, packed
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import InstanceSelector, Selection, add_selection
from shoal.scaling.placement import gang_order, largest_feasible, spread_order
from shoal.scaling.resource_vectors import Item
from shoal.scaling.strict_spread import place_gang
from shoal.scaling.workload import GangGroup, SingleNodeItem

# After so many gangs in a row for which the limits allow no instances, larger ones are only placed.
_MAX_FAILED_ATTEMPTS = 20


def select_for_gangs(
    instance_selector: InstanceSelector,
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup],
    strict_pack_gangs: Sequence[SingleNodeItem],
) -> list[Selection]:
    """Instances for what the gangs lack beyond the free capacity: for all of them or, if the limits
    do not allow that, for as many as they do, smallest first. STRICT_SPREAD gangs come first,
    because they cannot use what others leave on a node of theirs."""
    free_capacity = free_capacity.copy()
    selected = _select_for_spread(instance_selector, free_capacity, gang_groups)
    gangs = _Gangs(free_capacity, gang_groups, strict_pack_gangs)
    for_all = instance_selector.select_all(gangs.unplaced(gangs.total))
    if for_all is not None:
        return [*selected, *for_all]
    feasible = largest_feasible(
        gangs.total, lambda n: instance_selector.can_select_all(gangs.unplaced(n))
    )
    more = instance_selector.select_all(gangs.unplaced(feasible)) or []
    for selection in more:
        add_selection(free_capacity, selection)
    return [*selected, *more, *_select_one_by_one(instance_selector, gangs, feasible)]


def _select_for_spread(
    instance_selector: InstanceSelector,
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup],
) -> list[Selection]:
    """Instances for the STRICT_SPREAD gangs, gang by gang, each using what the gangs before it
    left. Places them in the free capacity."""
    counts: dict[int, int] = {}
    for index in spread_order(gang_groups):
        gang_group = gang_groups[index]
        for placed in range(gang_group.count):
            choices = instance_selector.choices(gang_group.bundles, gang_group.count - placed)
            launched = place_gang(free_capacity, gang_group.bundles, choices)
            if launched is None:
                break
            for option, n in launched.items():
                instance_selector.add(option, n)
                counts[option] = counts.get(option, 0) + n
    return [Selection(instance_selector.options[i], n) for i, n in sorted(counts.items())]


def _select_one_by_one(
    instance_selector: InstanceSelector, gangs: _Gangs, feasible: int
) -> list[Selection]:
    """Instances for gangs larger than the first one that the limits do not allow."""
    gangs.place(feasible)
    selected: list[Selection] = []
    failed = 0
    for number in range(feasible, gangs.total):
        items = gangs.items_of(number)
        if gangs.free_capacity.try_pack(items) or failed >= _MAX_FAILED_ATTEMPTS:
            continue
        if not instance_selector.is_any_open():
            failed = _MAX_FAILED_ATTEMPTS
            continue
        left = pack(gangs.free_capacity, items)
        space = gangs.free_capacity.space
        missing = [space.resized(i, n) for i, n in zip(items, left, strict=True) if n]
        more = instance_selector.select_all(missing)
        if more is None:
            failed += 1
            continue
        selected += more
        for selection in more:
            add_selection(gangs.free_capacity, selection)
        gangs.free_capacity.try_pack(items)
    return selected


class _Gangs:
    """The gangs that are not STRICT_SPREAD, one by one, smallest first."""

    def __init__(
        self,
        free_capacity: FreeCapacity,
        gang_groups: Sequence[GangGroup],
        strict_pack_gangs: Sequence[SingleNodeItem],
    ) -> None:
        self.free_capacity = free_capacity
        self._gangs: list[tuple[Sequence[Item], int]] = []
        space = free_capacity.space
        for is_packed, index in gang_order(space, gang_groups, strict_pack_gangs):
            if is_packed:
                item = strict_pack_gangs[index].item
                self._gangs.append(((space.resized(item, 1),), item.count))
            else:
                self._gangs.append((gang_groups[index].bundles, gang_groups[index].count))
        self.total = sum(count for _, count in self._gangs)

    def items(self, gangs: int) -> list[Item]:
        """The bundles of the first gangs."""
        space = self.free_capacity.space
        result: list[Item] = []
        for bundles, count in self._gangs:
            n = min(count, gangs)
            if not n:
                break
            gangs -= n
            result += [space.resized(item, item.count * n) for item in bundles]
        return result

    def items_of(self, number: int) -> list[Item]:
        """The bundles of one gang."""
        for bundles, count in self._gangs:
            if number < count:
                return list(bundles)
            number -= count
        raise IndexError(number)

    def unplaced(self, gangs: int) -> list[Item]:
        """The bundles of the first gangs that do not fit."""
        items = self.items(gangs)
        left = pack(self.free_capacity, items)
        space = self.free_capacity.space
        return [space.resized(i, n) for i, n in zip(items, left, strict=True) if n]

    def place(self, gangs: int) -> None:
        """Place the first gangs in the free capacity."""
        _, self.free_capacity = packed(self.free_capacity, self.items(gangs))
