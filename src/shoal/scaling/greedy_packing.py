"""Filling whole machines: which kind, with what on it, how many times.

Greedy by worth: a machine is worth the sum of what its items would cost each on the machine that
suits it best. The kind with the most worth for its price is taken, as many times as the same
filling repeats, until nothing is left or nothing more may be taken. The same function fills
machines that are there and machines that could be bought, so that what was bought is filled the
same way when it arrives.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

Pattern = tuple[tuple[int, int], ...]  # (item, copies on one machine)


@dataclass(frozen=True)
class Supply:
    """A kind of whole machine. Supplies of one `group` share a limit."""

    capacity: Vector
    labels: LabelClass
    special: int
    price: float
    group: int


@dataclass(frozen=True)
class Filled:
    """`machines` of a supply that carry the same pattern."""

    supply: int
    pattern: Pattern
    machines: int


def fits(frame: ResourceSpace, supply: Supply, item: Item) -> int:
    """How many copies of the item one empty machine holds; at most its count."""
    if not frame.admits(item.selector, supply.labels):
        return 0
    most = item.count
    for axis, amount in item.wants:
        fit = supply.capacity[axis] // amount
        if fit < most:
            most = fit
            if not most:
                return 0
    return most


def worths(frame: ResourceSpace, items: Sequence[Item], supplies: Sequence[Supply]) -> list[float]:
    """What one copy of each item costs on the machine that suits it best, were there enough
    copies to fill it; 0 for an item that fits nowhere."""
    result = []
    for item in items:
        many = frame.resized(item, 1 << 40)
        least = math.inf
        for supply in supplies:
            copies = fits(frame, supply, many)
            if copies:
                least = min(least, supply.price / copies)
        result.append(0.0 if least is math.inf else least)
    return result


class Filler:
    """One run of the greedy filling. `left` counts what has found no machine."""

    def __init__(
        self,
        frame: ResourceSpace,
        items: Sequence[Item],
        supplies: Sequence[Supply],
        worth: Sequence[float],
    ) -> None:
        self._items = items
        self._wants = [item.wants for item in items]
        self._supplies = supplies
        self.left = [item.count for item in items]
        self._able = [
            [i for i, item in enumerate(items) if fits(frame, supply, item)] for supply in supplies
        ]
        self._common = [_common_axes(able, items) for able in self._able]
        self.reprice(worth)

    def reprice(self, worth: Sequence[float]) -> None:
        """Take the items to be worth this from now on."""
        self._worth = worth
        # Orders in which to try the items, per supply.
        self._orders = [
            _orders(supply, able, self._items, worth)
            for supply, able in zip(self._supplies, self._able, strict=True)
        ]

    def run(
        self, limits: Sequence[float], slots: float = math.inf, surcharge: float = 0.0
    ) -> list[Filled]:
        """Fill machines until nothing is left, or the limits per group or overall are reached.
        A surcharge on every machine makes fewer and larger ones preferable."""
        limits = list(limits)
        result: list[Filled] = []
        # Worth for price only falls as items run out, so a stale figure is an upper bound and
        # only the top of the heap needs a fresh look.
        heap: list[tuple[float, int]] = [(-math.inf, i) for i in range(len(self._supplies))]
        fresh: dict[int, Pattern] = {}
        while heap and slots > 0:
            ratio, index = heapq.heappop(heap)
            supply = self._supplies[index]
            if limits[supply.group] <= 0:
                continue
            if index not in fresh:
                pattern, worth = self.pattern(index)
                if pattern:
                    fresh[index] = pattern
                    heapq.heappush(heap, (-worth / (supply.price + surcharge), index))
                continue
            pattern = fresh[index]
            repeats = min(self.left[item] // copies for item, copies in pattern)
            machines = int(min(repeats, limits[supply.group], slots))
            for item, copies in pattern:
                self.left[item] -= copies * machines
            limits[supply.group] -= machines
            slots -= machines
            result.append(Filled(index, pattern, machines))
            fresh.clear()
            heapq.heappush(heap, (ratio, index))
        return result

    def pattern(self, index: int) -> tuple[Pattern, float]:
        """The fullest filling found for one machine, and its worth."""
        best: Pattern = ()
        most = 0.0
        for order in self._orders[index]:
            pattern = self._fill(index, order)
            worth = sum([self._worth[item] * copies for item, copies in pattern])
            if worth > most:
                best, most = pattern, worth
        return best, most

    def balanced(self, index: int, first: int = -1, part: float = 0.0) -> tuple[Pattern, float]:
        """A filling made in small steps, each time of the item that is worth most for the share
        it takes of what is still free: slower, but it mixes items that want different things. It
        may start with `part` of the copies of one item that would fit."""
        free = list(self._supplies[index].capacity)
        taken: dict[int, int] = {}
        able = [i for i in self._able[index] if self._worth[i] > 0]
        if first >= 0:
            fit = self._fit(first, free, self.left[first])
            self._put(first, max(1, int(fit * part)), free, taken)
        while able:
            best, most, fitting = -1, 0.0, []
            for item in able:
                share = 0.0
                for axis, amount in self._wants[item]:
                    if amount > free[axis]:
                        break
                    share += amount / free[axis]
                else:
                    if taken.get(item, 0) < self.left[item]:
                        fitting.append(item)
                        density = self._worth[item] / (share or 1e-12)
                        if density > most:
                            best, most = item, density
            able = fitting
            if best >= 0:
                fit = self._fit(best, free, self.left[best] - taken.get(best, 0))
                self._put(best, max(1, fit // 4), free, taken)
        return tuple(sorted(taken.items())), sum(self._worth[i] * n for i, n in taken.items())

    def _fit(self, item: int, free: list[int], most: int) -> int:
        return min([free[axis] // amount for axis, amount in self._wants[item]] + [most])

    def _put(self, item: int, copies: int, free: list[int], taken: dict[int, int]) -> None:
        taken[item] = taken.get(item, 0) + copies
        for axis, amount in self._wants[item]:
            free[axis] -= amount * copies

    def able(self, index: int) -> list[int]:
        """The items that fit on an empty machine of this kind."""
        return self._able[index]

    def _fill(self, index: int, order: list[int]) -> Pattern:
        free = list(self._supplies[index].capacity)
        common = self._common[index]
        wants, left = self._wants, self.left
        pattern = []
        exhausted = 0
        for item in order:
            copies = left[item]
            if not copies:
                exhausted += 1
                continue
            for axis, amount in wants[item]:
                fit = free[axis] // amount
                if fit < copies:
                    copies = fit
                    if not copies:
                        break
            if copies:
                for axis, amount in wants[item]:
                    free[axis] -= amount * copies
                pattern.append((item, copies))
                if any(free[axis] < least for axis, least in common):
                    break
        if exhausted > 16 and exhausted * 8 > len(order):
            order[:] = [item for item in order if left[item]]
        return tuple(pattern)


def _orders(
    supply: Supply, able: list[int], items: Sequence[Item], worth: Sequence[float]
) -> list[list[int]]:
    """Large items first; items of most worth for their largest share of the machine first; and
    of most worth for all their shares together first."""
    shares = {i: [n / supply.capacity[axis] for axis, n in items[i].wants] or [1.0] for i in able}
    large = sorted(able, key=lambda i: (-max(shares[i]), items[i].hardness))
    dense = sorted(able, key=lambda i: (-worth[i] / max(shares[i]), items[i].hardness))
    light = sorted(able, key=lambda i: (-worth[i] / sum(shares[i]), items[i].hardness))
    orders = [large]
    for order in (dense, light):
        if order not in orders:
            orders.append(order)
    return orders


def _common_axes(able: list[int], items: Sequence[Item]) -> list[tuple[int, int]]:
    """The axes that every item wants, with the least that any of them wants."""
    if not able:
        return []
    axes = range(len(items[able[0]].need))
    least = [(axis, min(items[i].need[axis] for i in able)) for axis in axes]
    return [(axis, amount) for axis, amount in least if amount]
