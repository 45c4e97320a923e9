"""Instances for gangs that do not fit: for whole gangs, or none."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.bin_packing import pack, packed
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import InstanceSelector, Selection, add_selection
from shoal.scaling.placement import PackableGangs, largest_feasible, spread_order
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
    if not instance_selector.is_any_open():
        return []
    free_capacity = free_capacity.copy()
    space = free_capacity.space
    selected = _select_for_spread(instance_selector, free_capacity, gang_groups)
    gangs = PackableGangs(space, gang_groups, strict_pack_gangs)

    def lacking(first_gangs: int) -> list[Item]:
        return _unplaced(free_capacity, gangs.first(first_gangs))

    for_all = instance_selector.select_all(lacking(gangs.total))
    if for_all is not None:
        return [*selected, *for_all]
    feasible = largest_feasible(gangs.total, lambda n: instance_selector.can_select_all(lacking(n)))
    more = instance_selector.select_all(lacking(feasible)) or []
    for selection in more:
        add_selection(free_capacity, selection)
    _, free_capacity = packed(free_capacity, gangs.first(feasible))
    others = _select_one_by_one(instance_selector, free_capacity, gangs, feasible)
    return [*selected, *more, *others]


def _unplaced(free_capacity: FreeCapacity, items: Sequence[Item]) -> list[Item]:
    left = pack(free_capacity, items)
    return [free_capacity.space.resized(i, n) for i, n in zip(items, left, strict=True) if n]


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
    instance_selector: InstanceSelector,
    free_capacity: FreeCapacity,
    gangs: PackableGangs,
    first: int,
) -> list[Selection]:
    """Instances for gangs larger than the first one that the limits do not allow."""
    selected: list[Selection] = []
    failed = 0
    for _, items in gangs.after(first):
        if free_capacity.try_pack(items) or failed >= _MAX_FAILED_ATTEMPTS:
            continue
        if not instance_selector.is_any_open():
            failed = _MAX_FAILED_ATTEMPTS
            continue
        more = instance_selector.select_all(_unplaced(free_capacity, items))
        if more is None:
            failed += 1
            continue
        selected += more
        for selection in more:
            add_selection(free_capacity, selection)
        free_capacity.try_pack(items)
    return selected
