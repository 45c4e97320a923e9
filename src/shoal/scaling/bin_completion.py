"""Packing by bin completion, for demand that leaves hardly any capacity over.

Other packings place one item after the other. Where not a CPU may be left over, nearly all of their
placements are wrong. Here one bin after the other is filled, the smallest first, because there are
few ways to fill it; and with few large items rather than many small ones, which are easier to place
later. A bin may leave no more over than all bins together have beyond the demand. Bounded by steps,
so that equal input gives equal answers; when the steps run out the answer is that the items do not
fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.scaling.exact_search import Bin
from shoal.scaling.resource_vectors import Item, ResourceSpace, Vector, copies

MAX_BINS_COMPLETED = 200
MAX_ITEMS_COMPLETED = 100
COMPLETION_STEPS = 6_000
# In bins with more units of a resource than this, its sums are not looked at in advance.
_MAX_UNITS = 4_096


def complete_bins(
    space: ResourceSpace, items: Sequence[Item], bins: Sequence[Bin], steps: int = COMPLETION_STEPS
) -> list[Vector] | None:
    """What is left free in each bin once all items are packed. None if no packing is found, or if
    so much would be left over that other packings are better."""
    items = [item for item in items if item.count]
    if len(bins) > MAX_BINS_COMPLETED or len(items) > MAX_ITEMS_COMPLETED:
        return None
    slack = [
        sum([free[axis] for free, _ in bins]) - sum([i.amounts[axis] * i.count for i in items])
        for axis in range(len(space.names))
    ]
    if min(slack, default=0) < 0 or not _is_tight(items, slack):
        return None
    return _BinCompletion(space, items, bins, slack, steps).search()


def _is_tight(items: Sequence[Item], slack: Sequence[int]) -> bool:
    """Whether there is a resource of which less is left over than any item needs."""
    for axis, left_over in enumerate(slack):
        amounts = [item.amounts[axis] for item in items if item.amounts[axis]]
        if amounts and left_over < min(amounts):
            return True
    return False


class _Filling(NamedTuple):
    """How many copies of which items a bin gets, and what they leave free."""

    contents: tuple[tuple[int, int], ...]
    free: Vector


class _BinCompletion:
    """One search, depth first. `slack` is what the bins have beyond what the items need."""

    def __init__(
        self,
        space: ResourceSpace,
        items: Sequence[Item],
        bins: Sequence[Bin],
        slack: Sequence[int],
        steps: int,
    ) -> None:
        self._items = sorted(items, key=lambda item: (-space.size(item), item.hardness))
        self._left = [item.count for item in self._items]
        self._slack = list(slack)
        # Sums are counted in the largest unit of which all amounts are multiples.
        self._units = [
            math.gcd(*column) for column in zip(*(i.amounts for i in items), strict=True)
        ]
        sizes = [sum([n * w for n, w in zip(free, space.weight, strict=True)]) for free, _ in bins]
        self._order = sorted(range(len(bins)), key=lambda b: (sizes[b], bins[b], b))
        self._free = [bins[b][0] for b in self._order]
        # How many copies of each item a bin could hold, and how many that bin and all later ones.
        self._copies = [
            [
                copies(free, item) if space.matches(item.selector, labels) else 0
                for item in self._items
            ]
            for free, labels in (bins[b] for b in self._order)
        ]
        self._copies_from = [[0] * len(items)]
        for fitting in reversed(self._copies):
            later = self._copies_from[-1]
            self._copies_from.append([n + m for n, m in zip(fitting, later, strict=True)])
        self._copies_from.reverse()
        self._failed: set[tuple[int, ...]] = set()
        self._steps = steps

    def search(self) -> list[Vector] | None:
        if not self._fill_from(0):
            return None
        free = dict(zip(self._order, self._free, strict=True))
        return [free[b] for b in range(len(free))]

    def _fill_from(self, bin_: int) -> bool:
        """Place all that is left in this bin and the later ones."""
        if bin_ == len(self._free):
            return not any(self._left)
        # Other fillings of the bins before may have left the same.
        state = (bin_, *self._left)
        if state in self._failed:
            return False
        before = self._free[bin_]
        for filling in self._fillings(bin_):
            self._take(filling, 1)
            self._free[bin_] = filling.free
            if self._fill_from(bin_ + 1):
                return True
            self._free[bin_] = before
            self._take(filling, -1)
            if self._steps < 0:
                return False
        self._failed.add(state)
        return False

    def _take(self, filling: _Filling, sign: int) -> None:
        for index, n in filling.contents:
            self._left[index] -= sign * n
        for axis, n in enumerate(filling.free):
            self._slack[axis] -= sign * n

    def _fillings(self, bin_: int) -> Iterator[_Filling]:
        """The ways to fill a bin with what is left, large items first: nothing fits in addition,
        and what the later bins cannot hold is in this one."""
        fitting, later = self._copies[bin_], self._copies_from[bin_ + 1]
        if any(n > m + k for n, m, k in zip(self._left, fitting, later, strict=True)):
            return
        candidates = [i for i, n in enumerate(self._left) if n and fitting[i]]
        fewest = [max(0, self._left[i] - later[i]) for i in candidates]
        most = [min(self._left[i], fitting[i]) for i in candidates]
        amounts = [self._items[i].nonzero for i in candidates]
        sums = [
            (axis, self._sums(axis, self._free[bin_][axis], candidates))
            for axis in range(len(self._slack))
            if self._is_sum_checked(axis, self._free[bin_][axis])
        ]
        chosen: list[int] = []

        def extend(free: list[int]) -> Iterator[_Filling]:
            self._steps -= 1
            number = len(chosen)
            if self._steps < 0 or not all(
                self._can_be_filled(axis, free[axis], of_rest[number]) for axis, of_rest in sums
            ):
                return
            if number == len(candidates):
                if self._is_maximal(free, amounts, most, chosen):
                    contents = zip(candidates, chosen, strict=True)
                    yield _Filling(tuple((i, n) for i, n in contents if n), tuple(free))
                return
            n = min(most[number], *(free[axis] // amount for axis, amount in amounts[number]))
            for count in range(n, fewest[number] - 1, -1):
                rest = list(free)
                for axis, amount in amounts[number]:
                    rest[axis] -= amount * count
                chosen.append(count)
                yield from extend(rest)
                chosen.pop()

        yield from extend(list(self._free[bin_]))

    def _is_sum_checked(self, axis: int, free: int) -> bool:
        """Whether it matters how much of a resource a bin leaves over."""
        unit = self._units[axis]
        return unit > 0 and self._slack[axis] < free <= unit * _MAX_UNITS

    def _sums(self, axis: int, free: int, candidates: Sequence[int]) -> list[int]:
        """The amounts of a resource, in its unit and as bits, that all candidates can add up to,
        those from the second on, and so on to none."""
        unit = self._units[axis]
        mask = (2 << free // unit) - 1
        sums = [1]
        for index in reversed(candidates):
            bits, amount = sums[-1], self._items[index].amounts[axis] // unit
            for _ in range(min(self._left[index], free // unit // amount) if amount else 0):
                bits |= bits << amount & mask
            sums.append(bits)
        sums.reverse()
        return sums

    def _can_be_filled(self, axis: int, free: int, sums: int) -> bool:
        """Whether one of the sums leaves no more of a resource over than the slack."""
        unit = self._units[axis]
        least = -(-max(0, free - self._slack[axis]) // unit)
        return (sums & ((2 << free // unit) - 1)) >> least != 0

    def _is_maximal(
        self,
        free: Sequence[int],
        amounts: Sequence[Sequence[tuple[int, int]]],
        most: Sequence[int],
        chosen: Sequence[int],
    ) -> bool:
        """Whether no other item fits, and no more is left over than the slack."""
        if any(n > slack for n, slack in zip(free, self._slack, strict=True)):
            return False
        return not any(
            n < limit and all(free[axis] >= amount for axis, amount in needs)
            for n, limit, needs in zip(chosen, most, amounts, strict=True)
        )
