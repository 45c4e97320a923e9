"""Where pending work fits on existing and launching nodes, and what does not fit.

Everything is packed together first. If that leaves a gang over, gangs are placed before tasks: a
gang is placed whole or not at all, and tasks use what the gangs leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.scaling.bin_packing import pack, packed, small_bins
from shoal.scaling.exact_search import distinct_bins_pack
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.strict_spread import place_gang
from shoal.scaling.workload import GangGroup, SingleNodeItem


@dataclass(frozen=True)
class Unplaced:
    """How many gangs of each group, of each STRICT_PACK gang and of each task do not fit."""

    gang_groups: tuple[int, ...]
    strict_pack_gangs: tuple[int, ...]
    tasks: tuple[int, ...]

    def __bool__(self) -> bool:
        return any(self.gang_groups) or any(self.strict_pack_gangs) or any(self.tasks)


def place(
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup] = (),
    strict_pack_gangs: Sequence[SingleNodeItem] = (),
    tasks: Sequence[SingleNodeItem] = (),
) -> Unplaced:
    """Place everything in a copy of the free capacity."""
    space = free_capacity.space
    spread = [g for g in gang_groups if g.strict_spread]
    remaining = free_capacity
    unplaced = [0] * len(gang_groups)
    if spread:
        remaining, unplaced = with_strict_spread(free_capacity, gang_groups)
    bundles = [i for g in gang_groups if not g.strict_spread for i in g.bundles_of(space, g.count)]
    packed_items = [gang.item for gang in strict_pack_gangs]
    task_items = [task.item for task in tasks]
    gang_items = [*bundles, *packed_items]
    left = pack(remaining, [*gang_items, *task_items])
    if not any(left) and not any(unplaced):
        return _nothing(gang_groups, strict_pack_gangs, tasks)
    if spread and _fits_exactly(free_capacity, spread, [*gang_items, *task_items]):
        return _nothing(gang_groups, strict_pack_gangs, tasks)
    if not any(left[: len(gang_items)]):
        return Unplaced(
            tuple(unplaced), (0,) * len(strict_pack_gangs), tuple(left[len(gang_items) :])
        )
    gangs_left, with_gangs = packed(remaining, gang_items)
    packed_left = tuple(gangs_left[len(bundles) :])
    if any(gangs_left):
        with_gangs, whole, packed_left = _smallest_gangs_first(
            remaining, gang_groups, strict_pack_gangs
        )
        unplaced = [a + b for a, b in zip(unplaced, whole, strict=True)]
    return Unplaced(tuple(unplaced), packed_left, tuple(pack(with_gangs, task_items)))


def _nothing(
    gang_groups: Sequence[object], strict_pack_gangs: Sequence[object], tasks: Sequence[object]
) -> Unplaced:
    return Unplaced((0,) * len(gang_groups), (0,) * len(strict_pack_gangs), (0,) * len(tasks))


def with_strict_spread(
    free_capacity: FreeCapacity, gang_groups: Sequence[GangGroup]
) -> tuple[FreeCapacity, list[int]]:
    """A copy of the free capacity with the STRICT_SPREAD gangs placed in it, and how many gangs of
    each group do not fit."""
    free_capacity = free_capacity.copy()
    unplaced = [0] * len(gang_groups)
    for index in spread_order(gang_groups):
        gang_group = gang_groups[index]
        for placed in range(gang_group.count):
            if place_gang(free_capacity, gang_group.bundles) is None:
                unplaced[index] = gang_group.count - placed
                break
    return free_capacity, unplaced


def spread_order(gang_groups: Sequence[GangGroup]) -> list[int]:
    """The STRICT_SPREAD groups in the order in which they are placed, hardest bundles first."""
    return sorted(
        (i for i, gang_group in enumerate(gang_groups) if gang_group.strict_spread),
        key=lambda i: (
            min(item.hardness for item in gang_groups[i].bundles),
            -sum(item.count for item in gang_groups[i].bundles),
            i,
        ),
    )


def _fits_exactly(
    free_capacity: FreeCapacity, spread: Sequence[GangGroup], items: Sequence[Item]
) -> bool:
    """Whether everything fits, by exact search in small cases."""
    bins = small_bins(free_capacity.rows)
    if bins is None:
        return False
    gangs = [g.bundles for g in spread for _ in range(g.count)] if len(spread) <= 8 else []
    return bool(gangs) and distinct_bins_pack(free_capacity.space, gangs, items, bins)


def _smallest_gangs_first(
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup],
    strict_pack_gangs: Sequence[SingleNodeItem],
) -> tuple[FreeCapacity, list[int], tuple[int, ...]]:
    """As many whole gangs as fit, smallest first, so that most can start."""
    free_capacity = free_capacity.copy()
    unplaced = [0] * len(gang_groups)
    packed_left = [0] * len(strict_pack_gangs)
    for is_packed, index in gang_order(free_capacity.space, gang_groups, strict_pack_gangs):
        if is_packed:
            (packed_left[index],) = free_capacity.pack([strict_pack_gangs[index].item])
        else:
            unplaced[index] = _place_whole_gangs(free_capacity, gang_groups[index])
    return free_capacity, unplaced, tuple(packed_left)


def gang_order(
    space: ResourceSpace,
    gang_groups: Sequence[GangGroup],
    strict_pack_gangs: Sequence[SingleNodeItem],
) -> list[tuple[bool, int]]:
    """The gangs that are not STRICT_SPREAD, smallest first: whether it is STRICT_PACK, and its
    index."""
    sizes = [
        (sum(item.count * space.size(item) for item in g.bundles), False, i)
        for i, g in enumerate(gang_groups)
        if not g.strict_spread
    ]
    sizes += [(space.size(gang.item), True, i) for i, gang in enumerate(strict_pack_gangs)]
    return [(is_packed, index) for _, is_packed, index in sorted(sizes)]


def _place_whole_gangs(free_capacity: FreeCapacity, gang_group: GangGroup) -> int:
    """Place as many whole gangs as fit. Returns how many do not."""
    space = free_capacity.space
    left = gang_group.count
    step = left
    while left and step:
        step = min(step, left)
        if free_capacity.try_pack(gang_group.bundles_of(space, step)):
            left -= step
        else:
            step //= 2
    return left


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
