"""Greedy packing of items into bins of several types, by value per price.

An item is worth what one copy costs on the bin type that suits it best; a packed bin is worth the
sum of its items. The packer repeatedly takes the bin type and pattern with the highest value per
price, as many times as the pattern repeats, until nothing is left or a limit is reached. Existing
nodes and instances to launch are packed by the same code, so that an instance is filled in the same
way before and after it has been launched.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

Pattern = tuple[tuple[int, int], ...]  # (item, copies in one bin)


@dataclass(frozen=True)
class BinType:
    """A type of empty bin: an instance that can be launched, or an existing empty node. Bin types
    of one `group` share a limit."""

    capacity: Vector
    labels: LabelClass
    scarce: int
    price: float
    group: int


@dataclass(frozen=True)
class PackedBins:
    """`count` bins of one type that hold the same pattern."""

    bin_type: int
    pattern: Pattern
    count: int


def copies_that_fit(space: ResourceSpace, bin_type: BinType, item: Item) -> int:
    """How many copies of the item fit in one empty bin; at most the item's count."""
    if not space.matches(item.selector, bin_type.labels):
        return 0
    copies = item.count
    for axis, amount in item.nonzero:
        fit = bin_type.capacity[axis] // amount
        if fit < copies:
            copies = fit
            if not copies:
                return 0
    return copies


def item_values(
    space: ResourceSpace, items: Sequence[Item], bin_types: Sequence[BinType]
) -> list[float]:
    """What one copy of each item costs on its best bin type, if enough copies exist to fill the
    bin; 0 for an item that fits nowhere."""
    result = []
    for item in items:
        many = space.resized(item, 1 << 40)
        lowest = math.inf
        for bin_type in bin_types:
            copies = copies_that_fit(space, bin_type, many)
            if copies:
                lowest = min(lowest, bin_type.price / copies)
        result.append(0.0 if lowest is math.inf else lowest)
    return result


class GreedyPacker:
    """One run of the greedy packing. `left` counts the items that are not packed yet."""

    def __init__(
        self,
        space: ResourceSpace,
        items: Sequence[Item],
        bin_types: Sequence[BinType],
        values: Sequence[float],
    ) -> None:
        self._items = items
        self._nonzero = [item.nonzero for item in items]
        self._bin_types = bin_types
        self.left = [item.count for item in items]
        self._fitting = [
            [i for i, item in enumerate(items) if copies_that_fit(space, bin_type, item)]
            for bin_type in bin_types
        ]
        self._common = [_common_axes(fitting, items) for fitting in self._fitting]
        self.set_values(values)

    def set_values(self, values: Sequence[float]) -> None:
        """Use these item values from now on."""
        self._values = values
        # Orders in which to try the items, per bin type.
        self._orders = [
            _orders(bin_type, fitting, self._items, values)
            for bin_type, fitting in zip(self._bin_types, self._fitting, strict=True)
        ]

    def pack(
        self, limits: Sequence[float], total_limit: float = math.inf, surcharge: float = 0.0
    ) -> list[PackedBins]:
        """Pack until nothing is left, or the limits per group or in total are reached. A surcharge
        per bin makes fewer, larger bins preferable."""
        limits = list(limits)
        result: list[PackedBins] = []
        # Value per price only falls as items run out, so a stale figure is an upper bound and
        # only the top of the heap has to be computed again (lazy greedy).
        heap: list[tuple[float, int]] = [(-math.inf, i) for i in range(len(self._bin_types))]
        fresh: dict[int, Pattern] = {}
        while heap and total_limit > 0:
            ratio, index = heapq.heappop(heap)
            bin_type = self._bin_types[index]
            if limits[bin_type.group] <= 0:
                continue
            if index not in fresh:
                pattern, value = self.pattern(index)
                if pattern:
                    fresh[index] = pattern
                    heapq.heappush(heap, (-value / (bin_type.price + surcharge), index))
                continue
            pattern = fresh[index]
            repeats = min(self.left[item] // copies for item, copies in pattern)
            count = int(min(repeats, limits[bin_type.group], total_limit))
            for item, copies in pattern:
                self.left[item] -= copies * count
            limits[bin_type.group] -= count
            total_limit -= count
            result.append(PackedBins(index, pattern, count))
            fresh.clear()
            heapq.heappush(heap, (ratio, index))
        return result

    def pattern(self, index: int) -> tuple[Pattern, float]:
        """The most valuable pattern found for one bin of this type, and its value."""
        best: Pattern = ()
        best_value = 0.0
        for order in self._orders[index]:
            pattern = self._fill(index, order)
            value = sum([self._values[item] * copies for item, copies in pattern])
            if value > best_value:
                best, best_value = pattern, value
        return best, best_value

    def balanced_pattern(
        self, index: int, first: int = -1, fraction: float = 0.0
    ) -> tuple[Pattern, float]:
        """A pattern built in small steps, each of the item with the highest value for its share of
        what is still free. Slower than `pattern`, but it mixes items that need different resources.
        It may start with a `fraction` of the copies of item `first` that would fit."""
        free = list(self._bin_types[index].capacity)
        taken: dict[int, int] = {}
        fitting = [i for i in self._fitting[index] if self._values[i] > 0]
        if first >= 0:
            fit = self._copies(first, free, self.left[first])
            self._place(first, max(1, int(fit * fraction)), free, taken)
        while fitting:
            best, best_density, still_fitting = -1, 0.0, []
            for item in fitting:
                share = 0.0
                for axis, amount in self._nonzero[item]:
                    if amount > free[axis]:
                        break
                    share += amount / free[axis]
                else:
                    if taken.get(item, 0) < self.left[item]:
                        still_fitting.append(item)
                        density = self._values[item] / (share or 1e-12)
                        if density > best_density:
                            best, best_density = item, density
            fitting = still_fitting
            if best >= 0:
                fit = self._copies(best, free, self.left[best] - taken.get(best, 0))
                self._place(best, max(1, fit // 4), free, taken)
        return tuple(sorted(taken.items())), sum(self._values[i] * n for i, n in taken.items())

    def _copies(self, item: int, free: list[int], limit: int) -> int:
        return min([free[axis] // amount for axis, amount in self._nonzero[item]] + [limit])

    def _place(self, item: int, copies: int, free: list[int], taken: dict[int, int]) -> None:
        taken[item] = taken.get(item, 0) + copies
        for axis, amount in self._nonzero[item]:
            free[axis] -= amount * copies

    def fitting_items(self, index: int) -> list[int]:
        """The items that fit in an empty bin of this type."""
        return self._fitting[index]

    def _fill(self, index: int, order: list[int]) -> Pattern:
        free = list(self._bin_types[index].capacity)
        common = self._common[index]
        nonzero, left = self._nonzero, self.left
        pattern = []
        exhausted = 0
        for item in order:
            copies = left[item]
            if not copies:
                exhausted += 1
                continue
            for axis, amount in nonzero[item]:
                fit = free[axis] // amount
                if fit < copies:
                    copies = fit
                    if not copies:
                        break
            if copies:
                for axis, amount in nonzero[item]:
                    free[axis] -= amount * copies
                pattern.append((item, copies))
                if any(free[axis] < min_amount for axis, min_amount in common):
                    break
        if exhausted > 16 and exhausted * 8 > len(order):
            order[:] = [item for item in order if left[item]]
        return tuple(pattern)


def _orders(
    bin_type: BinType, fitting: list[int], items: Sequence[Item], values: Sequence[float]
) -> list[list[int]]:
    """Orders to try: largest first (first-fit decreasing), then highest value for the largest
    resource share, then highest value for the sum of resource shares."""
    shares = {
        i: [n / bin_type.capacity[axis] for axis, n in items[i].nonzero] or [1.0] for i in fitting
    }
    by_size = sorted(fitting, key=lambda i: (-max(shares[i]), items[i].hardness))
    by_max_share = sorted(fitting, key=lambda i: (-values[i] / max(shares[i]), items[i].hardness))
    by_total_share = sorted(fitting, key=lambda i: (-values[i] / sum(shares[i]), items[i].hardness))
    orders = [by_size]
    for order in (by_max_share, by_total_share):
        if order not in orders:
            orders.append(order)
    return orders


def _common_axes(fitting: list[int], items: Sequence[Item]) -> list[tuple[int, int]]:
    """The axes that every item needs, with the smallest amount that any item needs."""
    if not fitting:
        return []
    axes = range(len(items[fitting[0]].amounts))
    min_amounts = [(axis, min(items[i].amounts[axis] for i in fitting)) for axis in axes]
    return [(axis, amount) for axis, amount in min_amounts if amount]
