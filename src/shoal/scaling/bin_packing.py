"""Do these items fit on the existing nodes? Several packing heuristics, the fastest first.

The answer must be as good as the packing by which instances were selected. Otherwise the planner
would not see that instances which are still launching suffice, and would launch more each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.exact_search import MAX_BINS, Bin, packs
from shoal.scaling.free_capacity import FreeCapacity, Row
from shoal.scaling.greedy_packing import BinType, item_values
from shoal.scaling.instance_mix import MixProblem, unplaced_items
from shoal.scaling.resource_vectors import Item, ResourceSpace


def pack(free_capacity: FreeCapacity, items: Sequence[Item]) -> list[int]:
    """How many of each item do not fit: nodes in use are filled first, then empty ones. Changes
    nothing in `free_capacity`."""
    space = free_capacity.space
    remaining = [
        space.resized(i, n)
        for i, n in zip(items, free_capacity.unplaced_on_used_nodes(items), strict=True)
    ]
    empty_nodes = free_capacity.empty_nodes()
    left = empty_nodes.copy().pack(remaining)
    if not any(left) or not _could_hold(free_capacity, items):
        return left
    greedy_left = _pack_greedily(empty_nodes, remaining)
    if not any(greedy_left) or _packs_exactly(free_capacity, items):
        return [0] * len(items)
    return min(left, greedy_left, key=lambda result: (_weight(space, items, result), result))


def _could_hold(free_capacity: FreeCapacity, items: Sequence[Item]) -> bool:
    """Whether the capacity suffices on every axis, so that a better packing may exist."""
    rows = free_capacity.rows
    return all(
        sum(item.amounts[axis] * item.count for item in items)
        <= sum(row.free[axis] * row.count for row in rows)
        for axis in range(len(free_capacity.space.names))
    )


def _weight(space: ResourceSpace, items: Sequence[Item], left: Sequence[int]) -> float:
    return sum(
        n * sum(amount * space.weight[axis] for axis, amount in item.nonzero)
        for item, n in zip(items, left, strict=True)
    )


def _pack_greedily(empty_nodes: FreeCapacity, items: Sequence[Item]) -> list[int]:
    """What is left over when empty nodes are packed in the way that instances are selected."""
    rows = empty_nodes.rows
    bin_types = [
        BinType(row.free, row.labels, row.scarce, row.price, group)
        for group, row in enumerate(rows)
    ]
    values = item_values(empty_nodes.space, items, bin_types)
    left = [item.count for item in items]
    fitting = [i for i, item in enumerate(items) if item.count and values[i] > 0]
    if fitting:
        problem = MixProblem(
            empty_nodes.space, [items[i] for i in fitting], bin_types, [row.count for row in rows]
        )
        for i, n in zip(fitting, unplaced_items(problem), strict=True):
            left[i] = n
    return left


def _packs_exactly(free_capacity: FreeCapacity, items: Sequence[Item]) -> bool:
    bins = small_bins(free_capacity.rows)
    return bins is not None and packs(free_capacity.space, items, bins)


def small_bins(rows: Sequence[Row]) -> list[Bin] | None:
    """The nodes as single bins, if they are few enough for an exact search."""
    if sum(row.count for row in rows) > MAX_BINS:
        return None
    return [(row.free, row.labels) for row in rows for _ in range(row.count)]
