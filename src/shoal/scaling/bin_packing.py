"""Does the work fit in the room there is? Several ways of packing, the quick one first.

The answer must be as good as the one by which machines were bought: otherwise machines that are
on their way would not be seen to suffice, and more would be bought every time.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.exact_search import MOST_BINS, Bin, packs
from shoal.scaling.free_capacity import FreeCapacity, Row
from shoal.scaling.greedy_packing import Supply, worths
from shoal.scaling.instance_mix import Task, least_left
from shoal.scaling.resource_vectors import Item, ResourceSpace


def pack(room: FreeCapacity, items: Sequence[Item]) -> list[int]:
    """How many of each item find no place: used nodes are filled up first, then whole ones. The
    room itself is left as it was."""
    frame = room.frame
    rest = [frame.resized(i, n) for i, n in zip(items, room.left_by_used(items), strict=True)]
    whole = room.whole()
    left = whole.copy().pack(rest)
    if not any(left) or not _may_hold(room, items):
        return left
    other = _filled(whole, rest)
    if not any(other) or _searched(room, items):
        return [0] * len(items)
    return min(left, other, key=lambda result: (_size(frame, items, result), result))


def _may_hold(room: FreeCapacity, items: Sequence[Item]) -> bool:
    """Whether the room is large enough on every axis for another way to have a chance."""
    rows = room.rows
    return all(
        sum(item.need[axis] * item.count for item in items)
        <= sum(row.free[axis] * row.count for row in rows)
        for axis in range(len(room.frame.names))
    )


def _size(frame: ResourceSpace, items: Sequence[Item], left: Sequence[int]) -> float:
    return sum(
        n * sum(amount * frame.weight[axis] for axis, amount in item.wants)
        for item, n in zip(items, left, strict=True)
    )


def _filled(whole: FreeCapacity, items: Sequence[Item]) -> list[int]:
    """What is left when whole nodes are filled the way machines are chosen to be bought."""
    rows = whole.rows
    supplies = [
        Supply(row.free, row.labels, row.special, row.price, group)
        for group, row in enumerate(rows)
    ]
    worth = worths(whole.frame, items, supplies)
    left = [item.count for item in items]
    able = [i for i, item in enumerate(items) if item.count and worth[i] > 0]
    if able:
        task = Task(whole.frame, [items[i] for i in able], supplies, [row.count for row in rows])
        for i, n in zip(able, least_left(task), strict=True):
            left[i] = n
    return left


def _searched(room: FreeCapacity, items: Sequence[Item]) -> bool:
    bins = small_bins(room.rows)
    return bins is not None and packs(room.frame, items, bins)


def small_bins(rows: Sequence[Row]) -> list[Bin] | None:
    """The nodes one by one, if they are few enough to search."""
    if sum(row.count for row in rows) > MOST_BINS:
        return None
    return [(row.free, row.labels) for row in rows for _ in range(row.count)]
