"""Exact search for small cases: do these items fit, and what is the cheapest set of bins?

`packs` is a depth-first search over item placements with symmetry breaking. `cheapest_cover` is
best-first branch and bound over multisets of bin types. Both are bounded by steps rather than by
time, so that equal input gives equal answers. When the steps run out the answer is no, and the
caller keeps its greedy solution.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from shoal.scaling.greedy_packing import BinType, copies_that_fit
from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

Bin = tuple[Vector, LabelClass]

MAX_BINS = 14
MAX_ITEMS = 24
PACK_STEPS = 4_000
COVER_STEPS = 1_500


def packs(
    space: ResourceSpace, items: Sequence[Item], bins: Sequence[Bin], steps: int = PACK_STEPS
) -> bool:
    """Whether all items fit in the bins."""
    return _PackingSearch(space, items, bins, steps).search()


class _PackingSearch:
    """Depth-first search: hardest items first, as many copies as possible in the fullest bin."""

    def __init__(
        self, space: ResourceSpace, items: Sequence[Item], bins: Sequence[Bin], steps: int
    ) -> None:
        self._items = sorted((i for i in items if i.count), key=lambda i: i.hardness)
        ordered = sorted(
            bins, key=lambda b: (sum(map(float.__mul__, map(float, b[0]), space.weight)), b)
        )
        self._free = [list(free) for free, _ in ordered]
        self._matching = [
            [space.matches(i.selector, labels) for _, labels in ordered] for i in self._items
        ]
        self._labels = [labels for _, labels in ordered]
        self._steps = steps

    def search(self) -> bool:
        for axis in range(len(self._free[0]) if self._free else 0):
            if sum(i.amounts[axis] * i.count for i in self._items) > sum(
                f[axis] for f in self._free
            ):
                return False
        return self._place_item(0)

    def _copies(self, item: int, bin_: int) -> int:
        if not self._matching[item][bin_]:
            return 0
        free = self._free[bin_]
        limit = self._items[item].count
        for axis, amount in self._items[item].nonzero:
            limit = min(limit, free[axis] // amount)
        return limit

    def _place_item(self, item: int) -> bool:
        if item == len(self._items):
            return True
        bins = range(len(self._free))
        for later in range(item, len(self._items)):
            if sum(self._copies(later, b) for b in bins) < self._items[later].count:
                return False
        copies_after = [0]
        for b in reversed(bins):
            copies_after.append(copies_after[-1] + self._copies(item, b))
        copies_after.reverse()
        return self._place_copies(item, 0, self._items[item].count, copies_after, None)

    def _place_copies(
        self,
        item: int,
        bin_: int,
        left: int,
        copies_after: list[int],
        previous: tuple[Bin, int] | None,
    ) -> bool:
        """Place `left` copies in this bin and the following ones. A bin equal to the previous one
        takes at most as many copies as that one did: the mirrored placement has been tried."""
        if not left:
            return self._place_item(item + 1)
        if copies_after[bin_] < left:
            return False
        self._steps -= 1
        if self._steps < 0:
            return False
        free, nonzero = self._free[bin_], self._items[item].nonzero
        before: Bin = (tuple(free), self._labels[bin_])
        limit = min(left, self._copies(item, bin_))
        if previous and previous[0] == before:
            limit = min(limit, previous[1])
        for copies in range(limit, -1, -1):
            for axis, amount in nonzero:
                free[axis] -= amount * copies
            if self._place_copies(item, bin_ + 1, left - copies, copies_after, (before, copies)):
                return True
            for axis, amount in nonzero:
                free[axis] += amount * copies
            if self._steps < 0:
                return False
        return False


def cheapest_cover(
    space: ResourceSpace,
    items: Sequence[Item],
    bins: Sequence[Bin],
    bin_types: Sequence[BinType],
    limits: Sequence[float],
    total_limit: float,
    max_cost: float,
    *,
    steps: int = COVER_STEPS,
    pack_steps: int = PACK_STEPS,
) -> list[int] | None:
    """How many bins of each type to add to `bins` so that all items fit, at the lowest cost, if
    that is below `max_cost`. None if there is no such set or the steps ran out: `steps` bounds the
    sets tried, `pack_steps` the packing of each."""
    items = [item for item in items if item.count]
    if len(items) > MAX_ITEMS or len(bins) >= MAX_BINS:
        return None
    bounds = _CoverBounds(space, items, bins, bin_types, max_cost)
    heap: list[tuple[float, float, tuple[int, ...]]] = [(bounds.bound(()), 0.0, ())]
    while heap and steps > 0:
        _, cost, chosen = heapq.heappop(heap)
        steps -= 1
        if bounds.could_hold(chosen):
            extra = [(bin_types[t].capacity, bin_types[t].labels) for t in chosen]
            if packs(space, items, [*bins, *extra], pack_steps):
                return [chosen.count(t) for t in range(len(bin_types))]
        if len(chosen) >= total_limit or len(bins) + len(chosen) >= MAX_BINS:
            continue
        for t in range(chosen[-1] if chosen else 0, len(bin_types)):
            group = bin_types[t].group
            if sum(bin_types[c].group == group for c in chosen) >= limits[group]:
                continue
            more = (*chosen, t)
            total = cost + bin_types[t].price
            estimate = total + bounds.bound(more)
            if estimate < bounds.max_cost:
                heapq.heappush(heap, (estimate, total, more))
    return None


class _CoverBounds:
    """Lower bounds on the cost of covering the items: per resource, and per item on its own."""

    def __init__(
        self,
        space: ResourceSpace,
        items: Sequence[Item],
        bins: Sequence[Bin],
        bin_types: Sequence[BinType],
        max_cost: float,
    ) -> None:
        self.max_cost = max_cost * (1.0 - 1e-9)
        axes = range(len(space.names))
        existing_bins = [BinType(free, labels, 0, 0.0, 0) for free, labels in bins]

        def provides(bin_type: BinType) -> list[int]:
            return [bin_type.capacity[a] for a in axes] + [
                copies_that_fit(space, bin_type, i) for i in items
            ]

        self._provides = [provides(bin_type) for bin_type in bin_types]
        provided = [sum(column) for column in zip(*map(provides, existing_bins), strict=True)]
        required = [sum(i.amounts[a] * i.count for i in items) for a in axes] + [
            i.count for i in items
        ]
        self._required = [
            r - p for r, p in zip(required, provided or [0] * len(required), strict=True)
        ]
        self._unit_price = [
            min(
                (
                    s.price / g[row]
                    for s, g in zip(bin_types, self._provides, strict=True)
                    if g[row]
                ),
                default=math.inf,
            )
            for row in range(len(required))
        ]

    def _missing(self, chosen: tuple[int, ...]) -> list[int]:
        missing = self._required
        for t in chosen:
            missing = [m - g for m, g in zip(missing, self._provides[t], strict=True)]
        return missing

    def bound(self, chosen: tuple[int, ...]) -> float:
        """The lowest possible cost of what is still missing."""
        prices = zip(self._missing(chosen), self._unit_price, strict=True)
        return max((m * price for m, price in prices if m > 0), default=0.0)

    def could_hold(self, chosen: tuple[int, ...]) -> bool:
        """Whether no resource and no item is obviously short."""
        return all(m <= 0 for m in self._missing(chosen))
