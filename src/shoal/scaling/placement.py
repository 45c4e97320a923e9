"""Where pending work fits on existing and launching nodes, and what does not fit.

Everything is packed together first. If that leaves a gang over, gangs are placed before tasks: a
gang is placed whole or not at all, and tasks use what the gangs leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shoal.scaling.bin_packing import fits_by_moving, pack, packed, small_bins
from shoal.scaling.exact_search import distinct_bins_pack
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.repacking import MAX_LEFT
from shoal.scaling.resource_vectors import Item, ResourceSpace
from shoal.scaling.strict_spread import place_gang
from shoal.scaling.workload import GangGroup, SingleNodeItem, Workload

# How many other placements of tasks are tried, and how long each.
MAX_EXCHANGES = 100
EXCHANGE_STEPS = 500


@dataclass(frozen=True)
class Unplaced:
    """How many gangs of each group, of each STRICT_PACK gang and of each task do not fit."""

    gang_groups: tuple[int, ...]
    strict_pack_gangs: tuple[int, ...]
    tasks: tuple[int, ...]

    def __bool__(self) -> bool:
        return any(self.gang_groups) or any(self.strict_pack_gangs) or any(self.tasks)

    @property
    def gangs(self) -> int:
        """The number of gangs that do not fit."""
        return sum(self.gang_groups) + sum(self.strict_pack_gangs)


def place(
    free_capacity: FreeCapacity,
    gang_groups: Sequence[GangGroup] = (),
    strict_pack_gangs: Sequence[SingleNodeItem] = (),
    tasks: Sequence[SingleNodeItem] = (),
    *,
    fewest_left: bool = False,
) -> Unplaced:
    """Place everything in a copy of the free capacity. What is left is what is cheapest to launch
    instances for or, with `fewest_left`, the fewest tasks, found in less time."""
    spread = [g for g in gang_groups if g.strict_spread]
    work = (gang_groups, strict_pack_gangs, tasks)
    if not spread:
        return _place_beside(free_capacity, [0] * len(gang_groups), *work, fewest_left=fewest_left)
    remaining, unplaced = with_strict_spread(free_capacity, gang_groups)
    best = _place_beside(remaining, unplaced, *work, fewest_left=fewest_left)
    if not best or _fits_exactly(free_capacity, spread, _other_items(free_capacity.space, *work)):
        return _nothing(*work)
    remaining, unplaced = with_strict_spread(free_capacity, gang_groups, evenly=True)
    other = _place_beside(remaining, unplaced, *work, fewest_left=fewest_left)
    has_fewer_tasks = other.gangs == best.gangs and sum(other.tasks) < sum(best.tasks)
    is_better = not other or other.gangs < best.gangs or (fewest_left and has_fewer_tasks)
    return other if is_better else best


def _other_items(
    space: ResourceSpace,
    gang_groups: Sequence[GangGroup],
    strict_pack_gangs: Sequence[SingleNodeItem],
    tasks: Sequence[SingleNodeItem],
) -> list[Item]:
    """Everything but the STRICT_SPREAD gangs."""
    bundles = [i for g in gang_groups if not g.strict_spread for i in g.bundles_of(space, g.count)]
    return [*bundles, *(single.item for single in (*strict_pack_gangs, *tasks))]


def _place_beside(
    remaining: FreeCapacity,
    spread_unplaced: Sequence[int],
    gang_groups: Sequence[GangGroup],
    strict_pack_gangs: Sequence[SingleNodeItem],
    tasks: Sequence[SingleNodeItem],
    *,
    fewest_left: bool,
) -> Unplaced:
    """Place everything but the STRICT_SPREAD gangs in the capacity that these left."""
    space = remaining.space
    unplaced = list(spread_unplaced)
    items = _other_items(space, gang_groups, strict_pack_gangs, tasks)
    gang_count = len(items) - len(tasks)
    gang_items, task_items = items[:gang_count], items[gang_count:]
    # Gangs go first, so they are not weighed against tasks.
    left = pack(remaining, items, fewest_left=fewest_left and not gang_items, quick=fewest_left)
    if not any(left) and not any(unplaced):
        return _nothing(gang_groups, strict_pack_gangs, tasks)
    if not any(left[:gang_count]) and not (fewest_left and gang_items):
        return Unplaced(tuple(unplaced), (0,) * len(strict_pack_gangs), tuple(left[gang_count:]))
    gangs_left, with_gangs = packed(remaining, gang_items, quick=fewest_left)
    packed_left = gangs_left[gang_count - len(strict_pack_gangs) :]
    if any(gangs_left):
        gangs = PackableGangs(space, gang_groups, strict_pack_gangs)
        with_gangs, groups_left, packed_left = gangs.placed(remaining, quick=fewest_left)
        unplaced = [a + b for a, b in zip(unplaced, groups_left, strict=True)]
    tasks_left = pack(with_gangs, task_items, fewest_left=fewest_left, quick=fewest_left)
    return Unplaced(tuple(unplaced), tuple(packed_left), tuple(tasks_left))


def _nothing(
    gang_groups: Sequence[object], strict_pack_gangs: Sequence[object], tasks: Sequence[object]
) -> Unplaced:
    return Unplaced((0,) * len(gang_groups), (0,) * len(strict_pack_gangs), (0,) * len(tasks))


def with_strict_spread(
    free_capacity: FreeCapacity, gang_groups: Sequence[GangGroup], *, evenly: bool = False
) -> tuple[FreeCapacity, list[int]]:
    """A copy of the free capacity with the STRICT_SPREAD gangs placed in it, and how many gangs of
    each group do not fit. Bundles go to the fullest nodes or, if `evenly`, to the emptiest: a gang
    needs many nodes with a little space rather than few with much."""
    free_capacity = free_capacity.copy()
    unplaced = [0] * len(gang_groups)
    for index in spread_order(gang_groups):
        gang_group = gang_groups[index]
        for placed in range(gang_group.count):
            if place_gang(free_capacity, gang_group.bundles, evenly=evenly) is None:
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


def with_fewest_tasks_left(
    free_capacity: FreeCapacity, workload: Workload, unplaced: Unplaced
) -> Unplaced:
    """In small cases, a placement of more tasks beside the same gangs, if exact search finds one:
    by placing one more, or two instead of one."""
    bins = small_bins(free_capacity.rows)
    if bins is None or not any(unplaced.tasks):
        return unplaced
    space = free_capacity.space
    spread: list[Sequence[Item]] = []
    fixed: list[Item] = []
    for group, n in zip(workload.gang_groups, unplaced.gang_groups, strict=True):
        if group.strict_spread:
            spread += [group.bundles] * (group.count - n)
        else:
            fixed += group.bundles_of(space, group.count - n)
    pairs = zip(workload.strict_pack_gangs, unplaced.strict_pack_gangs, strict=True)
    fixed += [space.resized(gang.item, gang.item.count - n) for gang, n in pairs]
    items = [task.item for task in workload.tasks]
    steps = iter(range(MAX_EXCHANGES))

    def fits(left: Sequence[int]) -> bool:
        if next(steps, None) is None:
            return False
        placed = [space.resized(i, i.count - n) for i, n in zip(items, left, strict=True)]
        return distinct_bins_pack(space, spread, [*fixed, *placed], bins, EXCHANGE_STEPS)

    def changed(left: Sequence[int], fewer: Sequence[int], more: Sequence[int]) -> list[int] | None:
        counts = list(left)
        for i in fewer:
            counts[i] -= 1
        for i in more:
            counts[i] += 1
        in_range = all(0 <= n <= item.count for n, item in zip(counts, items, strict=True))
        return counts if in_range else None

    left = list(unplaced.tasks)
    kinds = range(len(items))
    changes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((i,), ()) for i in kinds]
    changes += [
        ((i, j), (k,)) for k in kinds for i in kinds for j in kinds if i <= j and k not in (i, j)
    ]
    is_better = True
    while is_better:
        is_better = False
        for fewer, more in changes:
            counts = changed(left, fewer, more)
            if counts is not None and fits(counts):
                left, is_better = counts, True
                break
    return replace(unplaced, tasks=tuple(left))


def all_placed_by_moving(
    free_capacity: FreeCapacity, workload: Workload, unplaced: Unplaced
) -> Unplaced:
    """Nothing unplaced, if the few things that are can be placed by moving others; otherwise the
    same."""
    if not 0 < unplaced.gangs + sum(unplaced.tasks) <= MAX_LEFT:
        return unplaced
    work = (workload.gang_groups, workload.strict_pack_gangs, workload.tasks)
    spread = [g.bundles for g in workload.gang_groups if g.strict_spread for _ in range(g.count)]
    items = _other_items(free_capacity.space, *work)
    return _nothing(*work) if fits_by_moving(free_capacity, items, spread) else unplaced


class PackableGangs:
    """The gangs that are not STRICT_SPREAD, one by one, smallest first, so that most can start if
    not all fit."""

    def __init__(
        self,
        space: ResourceSpace,
        gang_groups: Sequence[GangGroup],
        strict_pack_gangs: Sequence[SingleNodeItem],
    ) -> None:
        self._space = space
        self._groups = len(gang_groups)
        sizes = [
            (sum(i.count * space.size(i) for i in g.bundles), n, g.bundles, g.count)
            for n, g in enumerate(gang_groups)
            if not g.strict_spread
        ]
        sizes += [
            (
                space.size(gang.item),
                self._groups + n,
                (space.resized(gang.item, 1),),
                gang.item.count,
            )
            for n, gang in enumerate(strict_pack_gangs)
        ]
        sizes.sort(key=lambda entry: entry[:2])
        self._gangs = [(number, bundles, count) for _, number, bundles, count in sizes]
        self._total_numbers = self._groups + len(strict_pack_gangs)
        self.total = sum(count for _, _, count in self._gangs)

    def first(self, gangs: int) -> list[Item]:
        """The bundles of the first gangs."""
        result: list[Item] = []
        for _, bundles, count in self._gangs:
            n = min(count, gangs)
            if not n:
                break
            gangs -= n
            result += [self._space.resized(item, item.count * n) for item in bundles]
        return result

    def after(self, gangs: int) -> Iterator[tuple[int, Sequence[Item]]]:
        """The gangs after the first ones, each with its number and bundles."""
        for number, bundles, count in self._gangs:
            for _ in range(max(0, count - gangs)):
                yield number, bundles
            gangs = max(0, gangs - count)

    def placed(
        self, free_capacity: FreeCapacity, *, quick: bool = False
    ) -> tuple[FreeCapacity, list[int], list[int]]:
        """A copy of the free capacity with as many whole gangs as fit; and how many gangs of each
        group, and of each STRICT_PACK gang, do not fit."""
        fitting = largest_feasible(
            self.total, lambda gangs: not any(pack(free_capacity, self.first(gangs), quick=quick))
        )
        _, result = packed(free_capacity, self.first(fitting), quick=quick)
        unplaced = [0] * self._total_numbers
        for number, bundles in self.after(fitting):
            if not result.try_pack(bundles):
                unplaced[number] += 1
        return result, unplaced[: self._groups], unplaced[self._groups :]


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
