"""Instances for gangs that do not fit: for whole gangs, or none."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.bin_packing import pack
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.instance_selection import InstanceSelector, Selection
from shoal.scaling.placement import Unplaced, largest_feasible, with_strict_spread
from shoal.scaling.resource_vectors import Item
from shoal.scaling.workload import GangGroup, SingleNodeItem


def select_for_gangs(
    instance_selector: InstanceSelector,
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup],
    strict_pack_gangs: Sequence[SingleNodeItem],
    unplaced: Unplaced,
) -> list[Selection]:
    """Instances for what the unplaced gangs lack beyond the free capacity: for one STRICT_SPREAD
    group, or for all other gangs together, or, if the limits do not allow that, for as many whole
    gangs of one group as they do. The caller calls again for what is left."""
    for gang_group, gangs in zip(gang_groups, unplaced.gang_groups, strict=True):
        if (
            gang_group.strict_spread
            and gangs
            and (selected := instance_selector.select_for_strict_spread(free_capacity, gang_group))
        ):
            return selected
    free_capacity, _ = with_strict_spread(free_capacity, gang_groups)
    strict_pack_items = [gang.item for gang in strict_pack_gangs]
    all_counts = [gang_group.count for gang_group in gang_groups]
    bundles = _unplaced_bundles(free_capacity, gang_groups, all_counts, strict_pack_items)
    if selected := instance_selector.select_all(bundles) or []:
        return selected
    strict_pack_items = _resized(
        free_capacity,
        strict_pack_gangs,
        [gang.item.count for gang in strict_pack_gangs],
        unplaced.single_items,
    )
    placed = [
        n - unplaced_count
        for n, unplaced_count in zip(all_counts, unplaced.gang_groups, strict=True)
    ]
    for index, gang_group in enumerate(gang_groups):
        if gang_group.strict_spread or not unplaced.gang_groups[index]:
            continue

        def with_more(gangs: int, index: int = index) -> list[Item]:
            counts = [n + gangs * (i == index) for i, n in enumerate(placed)]
            return _unplaced_bundles(free_capacity, gang_groups, counts, strict_pack_items)

        gangs = largest_feasible(
            unplaced.gang_groups[index], lambda n: instance_selector.can_select_all(with_more(n))
        )
        if gangs and (selected := instance_selector.select_all(with_more(gangs)) or []):
            return selected
    nothing = [0] * len(strict_pack_gangs)
    return instance_selector.select(
        _resized(free_capacity, strict_pack_gangs, unplaced.single_items, nothing)
    )


def _unplaced_bundles(
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup],
    counts: Sequence[int],
    strict_pack_items: Sequence[Item],
) -> list[Item]:
    """The bundles of these numbers of gangs, and the STRICT_PACK gangs, that do not fit."""
    pairs = [
        (gang_group, n)
        for gang_group, n in zip(gang_groups, counts, strict=True)
        if not gang_group.strict_spread
    ]
    items = [
        *strict_pack_items,
        *(i for gang_group, n in pairs for i in gang_group.bundles_of(free_capacity.space, n)),
    ]
    left = pack(free_capacity, items)
    return [free_capacity.space.resized(i, n) for i, n in zip(items, left, strict=True) if n]


def _resized(
    free_capacity: FreeCapacity,
    strict_pack_gangs: Sequence[SingleNodeItem],
    counts: Sequence[int],
    placed: Sequence[int],
) -> list[Item]:
    triples = zip(strict_pack_gangs, counts, placed, strict=True)
    return [free_capacity.space.resized(gang.item, n - m) for gang, n, m in triples if n > m]
