"""Where pending work fits on existing and launching nodes, and what does not fit.

Gangs are placed before tasks, and a gang is placed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.scaling.bin_packing import pack
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.workload import GangGroup, SingleNodeItem


@dataclass(frozen=True)
class Unplaced:
    """How many gangs of each group, and of each single item, do not fit."""

    gang_groups: tuple[int, ...]
    single_items: tuple[int, ...]

    def __bool__(self) -> bool:
        return any(self.gang_groups) or any(self.single_items)


def place(
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup],
    single_items: Sequence[SingleNodeItem],
) -> Unplaced:
    """Place everything in a copy of the free capacity."""
    free_capacity, unplaced = with_strict_spread(free_capacity, gang_groups)
    other_groups = [i for i, gang_group in enumerate(gang_groups) if not gang_group.strict_spread]
    items = [entry.item for entry in single_items]
    bundles = [
        i
        for index in other_groups
        for i in gang_groups[index].bundles_of(free_capacity.space, gang_groups[index].count)
    ]
    left = pack(free_capacity, [*bundles, *items])
    if not any(left[: len(bundles)]):
        return Unplaced(tuple(unplaced), tuple(left[len(bundles) :]))
    for index in other_groups:
        unplaced[index] = _place_whole_gangs(free_capacity, gang_groups[index])
    return Unplaced(tuple(unplaced), tuple(pack(free_capacity, items)))


def with_strict_spread(
    free_capacity: FreeCapacity, gang_groups: Sequence[GangGroup]
) -> tuple[FreeCapacity, list[int]]:
    """A copy of the free capacity with the STRICT_SPREAD gangs placed in it, and how many gangs of
    each group do not fit."""
    free_capacity = free_capacity.copy()
    return free_capacity, [
        _place_strict_spread(free_capacity, gang_group) if gang_group.strict_spread else 0
        for gang_group in gang_groups
    ]


def _place_strict_spread(free_capacity: FreeCapacity, gang_group: GangGroup) -> int:
    bundles = [free_capacity.space.resized(item, 1) for item in gang_group.single_bundles()]
    for placed in range(gang_group.count):
        if free_capacity.place_on_distinct_nodes(bundles):
            return gang_group.count - placed
    return 0


def _place_whole_gangs(free_capacity: FreeCapacity, gang_group: GangGroup) -> int:
    """Place as many whole gangs as fit. Returns how many do not."""

    def all_fit(gangs: int) -> bool:
        return not any(free_capacity.copy().pack(gang_group.bundles_of(free_capacity.space, gangs)))

    gangs = largest_feasible(gang_group.count, all_fit)
    free_capacity.pack(gang_group.bundles_of(free_capacity.space, gangs))
    return gang_group.count - gangs


def largest_feasible(limit: int, is_feasible: Callable[[int], bool]) -> int:
    """The largest number up to the limit that is feasible, by binary search: what is feasible for
    some is assumed to be feasible for fewer."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if is_feasible(middle):
            low = middle
        else:
            high = middle - 1
    return low
