"""Do these items fit on the existing nodes? Several packing heuristics, the fastest first.

The answer must be as good as the packing by which instances were selected. Otherwise the planner
would not see that instances which are still launching suffice, and would launch more each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.bin_completion import complete_bins
from shoal.scaling.exact_search import MAX_BINS, PACK_STEPS, QUICK_PACK_STEPS, Bin, pack_exactly
from shoal.scaling.free_capacity import FreeCapacity, Row
from shoal.scaling.greedy_packing import BinType, item_values
from shoal.scaling.instance_mix import MixProblem, best_packing
from shoal.scaling.packing_bounds import cannot_fit
from shoal.scaling.repacking import MAX_BINS_REPACKED, repack
from shoal.scaling.resource_vectors import Item, ResourceSpace


def pack(
    free_capacity: FreeCapacity,
    items: Sequence[Item],
    *,
    fewest_left: bool = False,
    quick: bool = False,
) -> list[int]:
    """How many of each item do not fit: nodes in use are filled first, then empty ones. If not all
    fit, those are left that need the least capacity or, with `fewest_left`, the fewest. `quick`
    leaves out what takes too long for many sets of instances: column generation, and moving items.
    Changes nothing in `free_capacity`."""
    space = free_capacity.space
    remaining = _resized(space, items, free_capacity.unplaced_on_used_nodes(items))
    empty_nodes = free_capacity.empty_nodes()
    left = empty_nodes.copy().pack(remaining)
    if not any(left):
        return left
    results = [left]
    if _could_hold(free_capacity, items):
        if not quick:
            greedy_left, _ = _pack_greedily(empty_nodes, remaining)
            if not any(greedy_left):
                return greedy_left
            results.append(greedy_left)
        if _pack_thoroughly(free_capacity, items, quick) is not None:
            return [0] * len(items)
    if fewest_left:
        results.append(free_capacity.copy().pack(items, smallest_first=True))

    def rank(result: list[int]) -> tuple[int, float, list[int]]:
        return (sum(result) if fewest_left else 0, _weight(space, items, result), result)

    return min(results, key=rank)


def packed(
    free_capacity: FreeCapacity, items: Sequence[Item], *, quick: bool = False
) -> tuple[list[int], FreeCapacity]:
    """How many of each item do not fit, found as `pack` does, and a copy of the free capacity that
    holds the others."""
    used = free_capacity.used_nodes()
    remaining = _resized(free_capacity.space, items, used.pack(items))
    empty_nodes = free_capacity.empty_nodes()
    best_fit = empty_nodes.copy()
    left = best_fit.pack(remaining)
    if not any(left):
        return left, used.joined(best_fit)
    if _could_hold(free_capacity, items):
        if not quick:
            greedy_left, greedy = _pack_greedily(empty_nodes, remaining)
            if not any(greedy_left):
                return greedy_left, used.joined(greedy)
        exact = _pack_thoroughly(free_capacity, items, quick)
        if exact is not None:
            return [0] * len(items), exact
    return left, used.joined(best_fit)


def _resized(space: ResourceSpace, items: Sequence[Item], counts: Sequence[int]) -> list[Item]:
    return [space.resized(i, n) for i, n in zip(items, counts, strict=True)]


def _could_hold(free_capacity: FreeCapacity, items: Sequence[Item]) -> bool:
    """Whether the items may fit, so that a better packing may exist."""
    bins = [(row.free, row.labels, row.count) for row in free_capacity.rows]
    return not cannot_fit(free_capacity.space, items, bins)


def _weight(space: ResourceSpace, items: Sequence[Item], left: Sequence[int]) -> float:
    return sum(n * space.size(item) for item, n in zip(items, left, strict=True))


def _pack_greedily(
    empty_nodes: FreeCapacity, items: Sequence[Item]
) -> tuple[list[int], FreeCapacity]:
    """What is left over when empty nodes are packed in the way that instances are selected, and
    what is then free."""
    rows = empty_nodes.rows
    bin_types = [
        BinType(row.free, row.labels, row.scarce, row.price, group)
        for group, row in enumerate(rows)
    ]
    result = empty_nodes.copy()
    values = item_values(empty_nodes.space, items, bin_types)
    left = [item.count for item in items]
    fitting = [i for i, item in enumerate(items) if item.count and values[i] > 0]
    if fitting:
        problem = MixProblem(
            empty_nodes.space, [items[i] for i in fitting], bin_types, [row.count for row in rows]
        )
        unplaced, bins = best_packing(problem)
        for i, n in zip(fitting, unplaced, strict=True):
            left[i] = n
        for group in bins:
            result.fill(rows[group.bin_type], [(items[fitting[i]], n) for i, n in group.pattern],
                        group.count)  # fmt: skip
    return left, result


def _pack_thoroughly(
    free_capacity: FreeCapacity, items: Sequence[Item], quick: bool
) -> FreeCapacity | None:
    """The free capacity with all items packed, if filling nodes one after the other, moving items
    or, on few nodes, exact search finds a way."""
    bins = _single_bins(free_capacity.rows, MAX_BINS if quick else MAX_BINS_REPACKED)
    if bins is None:
        return None
    free = None
    if not quick:
        free = complete_bins(free_capacity.space, items, bins)
        if free is None:
            free = repack(free_capacity.space, items, bins)
    if free is None and len(bins) <= MAX_BINS:
        steps = QUICK_PACK_STEPS if quick else PACK_STEPS
        free = pack_exactly(free_capacity.space, items, bins, steps)
    if free is None:
        return None
    result = FreeCapacity(free_capacity.space)
    rows = (row for row in free_capacity.rows for _ in range(row.count))
    for row, after in zip(rows, free, strict=True):
        is_empty = row.is_empty and after == row.free
        result.add(after, row.labels, row.scarce, row.price, is_empty, 1)
    return result


def fits_by_moving(
    free_capacity: FreeCapacity, items: Sequence[Item], spread: Sequence[Sequence[Item]]
) -> bool:
    """Whether moving items finds a place for all of them and for the STRICT_SPREAD gangs. Takes
    longer than `pack`."""
    if not _could_hold(free_capacity, [*items, *(item for gang in spread for item in gang)]):
        return False
    bins = _single_bins(free_capacity.rows, MAX_BINS_REPACKED)
    if bins is None:
        return False
    return repack(free_capacity.space, items, bins, spread=spread) is not None


def small_bins(rows: Sequence[Row]) -> list[Bin] | None:
    """The nodes as single bins, if they are few enough for an exact search."""
    return _single_bins(rows, MAX_BINS)


def _single_bins(rows: Sequence[Row], most: int) -> list[Bin] | None:
    if sum(row.count for row in rows) > most:
        return None
    return [(row.free, row.labels) for row in rows for _ in range(row.count)]
