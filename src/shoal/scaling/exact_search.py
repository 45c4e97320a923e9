"""Exact answers for small cases: does this fit, and what is the cheapest set that holds it?

Both searches are bounded by steps, not by time, so that they always give the same answer. When
the steps run out they say no; the caller then keeps what the greedy way found.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from shoal.scaling.greedy_packing import Supply, fits
from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

Bin = tuple[Vector, LabelClass]

MOST_BINS = 14
MOST_KINDS = 24
PACK_STEPS = 4_000
COVER_STEPS = 1_500


def packs(
    frame: ResourceSpace, items: Sequence[Item], bins: Sequence[Bin], steps: int = PACK_STEPS
) -> bool:
    """Whether all items can be laid into the bins, each bin used once."""
    return _Packing(frame, items, bins, steps).search()


class _Packing:
    """Depth-first: items hardest first, and of each as many as possible in the tightest bin."""

    def __init__(
        self, frame: ResourceSpace, items: Sequence[Item], bins: Sequence[Bin], steps: int
    ) -> None:
        self._items = sorted((i for i in items if i.count), key=lambda i: i.hardness)
        ordered = sorted(
            bins, key=lambda b: (sum(map(float.__mul__, map(float, b[0]), frame.weight)), b)
        )
        self._free = [list(room) for room, _ in ordered]
        self._open = [
            [frame.admits(i.selector, labels) for _, labels in ordered] for i in self._items
        ]
        self._labels = [labels for _, labels in ordered]
        self._steps = steps

    def search(self) -> bool:
        for axis in range(len(self._free[0]) if self._free else 0):
            if sum(i.need[axis] * i.count for i in self._items) > sum(f[axis] for f in self._free):
                return False
        return self._item(0)

    def _copies(self, item: int, bin_: int) -> int:
        if not self._open[item][bin_]:
            return 0
        free = self._free[bin_]
        most = self._items[item].count
        for axis, amount in self._items[item].wants:
            most = min(most, free[axis] // amount)
        return most

    def _item(self, item: int) -> bool:
        if item == len(self._items):
            return True
        bins = range(len(self._free))
        for later in range(item, len(self._items)):
            if sum(self._copies(later, b) for b in bins) < self._items[later].count:
                return False
        room_after = [0]
        for b in reversed(bins):
            room_after.append(room_after[-1] + self._copies(item, b))
        room_after.reverse()
        return self._spread(item, 0, self._items[item].count, room_after, None)

    def _spread(
        self, item: int, bin_: int, left: int, room_after: list[int], twin: tuple[Bin, int] | None
    ) -> bool:
        """Lay `left` copies into this bin and those after it. A bin that was equal to the one
        before it takes no more than that one did: the mirror image has been tried."""
        if not left:
            return self._item(item + 1)
        if room_after[bin_] < left:
            return False
        self._steps -= 1
        if self._steps < 0:
            return False
        free, wants = self._free[bin_], self._items[item].wants
        before: Bin = (tuple(free), self._labels[bin_])
        most = min(left, self._copies(item, bin_))
        if twin and twin[0] == before:
            most = min(most, twin[1])
        for copies in range(most, -1, -1):
            for axis, amount in wants:
                free[axis] -= amount * copies
            if self._spread(item, bin_ + 1, left - copies, room_after, (before, copies)):
                return True
            for axis, amount in wants:
                free[axis] += amount * copies
            if self._steps < 0:
                return False
        return False


def cheapest_cover(
    frame: ResourceSpace,
    items: Sequence[Item],
    bins: Sequence[Bin],
    supplies: Sequence[Supply],
    limits: Sequence[float],
    slots: float,
    below: float,
    *,
    steps: int = COVER_STEPS,
    pack_steps: int = PACK_STEPS,
) -> list[int] | None:
    """How many of each supply to add to the bins so that all items fit, for the least money, if
    that is less than `below`. None when there is no such set, or the steps ran out: `steps` for
    sets to look at, `pack_steps` for packing each."""
    items = [item for item in items if item.count]
    if len(items) > MOST_KINDS or len(bins) >= MOST_BINS:
        return None
    search = _Cover(frame, items, bins, supplies, below)
    heap: list[tuple[float, float, tuple[int, ...]]] = [(search.bound(()), 0.0, ())]
    while heap and steps > 0:
        _, cost, chosen = heapq.heappop(heap)
        steps -= 1
        if search.may_hold(chosen):
            extra = [(supplies[s].capacity, supplies[s].labels) for s in chosen]
            if packs(frame, items, [*bins, *extra], pack_steps):
                return [chosen.count(s) for s in range(len(supplies))]
        if len(chosen) >= slots or len(bins) + len(chosen) >= MOST_BINS:
            continue
        for s in range(chosen[-1] if chosen else 0, len(supplies)):
            group = supplies[s].group
            if sum(supplies[c].group == group for c in chosen) >= limits[group]:
                continue
            more = (*chosen, s)
            total = cost + supplies[s].price
            estimate = total + search.bound(more)
            if estimate < search.below:
                heapq.heappush(heap, (estimate, total, more))
    return None


class _Cover:
    """Lower bounds for sets of supplies: by every resource, and by every item on its own."""

    def __init__(
        self,
        frame: ResourceSpace,
        items: Sequence[Item],
        bins: Sequence[Bin],
        supplies: Sequence[Supply],
        below: float,
    ) -> None:
        self.below = below * (1.0 - 1e-9)
        axes = range(len(frame.names))
        free = [Supply(room, labels, 0, 0.0, 0) for room, labels in bins]

        def gives(supply: Supply) -> list[int]:
            return [supply.capacity[a] for a in axes] + [fits(frame, supply, i) for i in items]

        self._gives = [gives(supply) for supply in supplies]
        there = [sum(column) for column in zip(*map(gives, free), strict=True)] if free else None
        needed = [sum(i.need[a] * i.count for i in items) for a in axes] + [i.count for i in items]
        self._needed = [n - h for n, h in zip(needed, there or [0] * len(needed), strict=True)]
        self._unit_price = [
            min(
                (s.price / g[row] for s, g in zip(supplies, self._gives, strict=True) if g[row]),
                default=math.inf,
            )
            for row in range(len(needed))
        ]

    def _missing(self, chosen: tuple[int, ...]) -> list[int]:
        missing = self._needed
        for s in chosen:
            missing = [m - g for m, g in zip(missing, self._gives[s], strict=True)]
        return missing

    def bound(self, chosen: tuple[int, ...]) -> float:
        """What must still be spent, at the very least."""
        prices = zip(self._missing(chosen), self._unit_price, strict=True)
        return max((m * price for m, price in prices if m > 0), default=0.0)

    def may_hold(self, chosen: tuple[int, ...]) -> bool:
        """Whether nothing is obviously missing."""
        return all(m <= 0 for m in self._missing(chosen))
