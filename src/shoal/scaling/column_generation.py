"""What each item is worth in the best fractional mix, and the fillings that mix is made of.

This is the linear relaxation of the choice of machines, by column generation: start from
machines that hold one kind of item each, price the items by that mix, look for a filling that
is worth more than its machine costs, swap it in, and repeat. The basis is as wide as there are
kinds of items, so this is for some dozens of kinds; beyond that the greedy way must do.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.greedy_packing import Filler, Pattern, Supply, fits
from shoal.scaling.resource_vectors import Item, ResourceSpace

WIDEST = 40
_TOLERANCE = 1e-9
_GAIN = 1e-6


class FractionalMix:
    """The fractional mix as it is improved: `amounts[row]` machines of `supply[row]`, each
    filled with `patterns[row]`, hold all items, and `worth` is each item's price in it."""

    def __init__(
        self, frame: ResourceSpace, items: Sequence[Item], supplies: Sequence[Supply]
    ) -> None:
        self._supplies = supplies
        self._filler = Filler(frame, items, supplies, [1.0] * len(items))
        self._demand = [float(item.count) for item in items]
        self.supply: list[int] = []
        self.patterns: list[Pattern] = []
        width = len(items)
        # `_inverse` is the inverse of the matrix whose columns are the patterns in the basis.
        self._inverse = [[0.0] * width for _ in range(width)]
        for row, item in enumerate(items):
            _, best, copies = min(
                (supply.price / n, index, n)
                for index, supply in enumerate(supplies)
                if (n := fits(frame, supply, item))
            )
            self.supply.append(best)
            self.patterns.append(((row, copies),))
            self._inverse[row][row] = 1.0 / copies
        self.amounts = self._solve(self._demand)
        self.worth = self._prices()

    def improve(self, fillings: int) -> None:
        """Swap better fillings in until none is found, or so many have been looked at."""
        self._fillings = fillings
        while self._fillings > 0:
            gain, index, pattern = self._best_column()
            if gain <= 1.0 + _GAIN or not self._swap_in(index, pattern):
                return
            self.worth = self._prices()

    def _solve(self, demand: Sequence[float]) -> list[float]:
        return [sum([a * d for a, d in zip(row, demand, strict=True)]) for row in self._inverse]

    def _prices(self) -> list[float]:
        worth = [0.0] * len(self._demand)
        for supply, row in zip(self.supply, self._inverse, strict=True):
            price = self._supplies[supply].price
            worth = [w + price * a for w, a in zip(worth, row, strict=True)]
        return [max(w, 0.0) for w in worth]

    def _best_column(self) -> tuple[float, int, Pattern]:
        """The filling with the most worth for its price by quick means, or else the first by
        slow ones that is worth more than it costs."""
        filler = self._filler
        filler.reprice(self.worth)
        best: tuple[float, int, Pattern] = (0.0, -1, ())
        for index, supply in enumerate(self._supplies):
            self._fillings -= 1
            for pattern, worth in (filler.pattern(index), filler.balanced(index)):
                if worth / supply.price > best[0] + _TOLERANCE:
                    best = (worth / supply.price, index, pattern)
        if best[0] > 1.0 + _GAIN:
            return best
        for index, supply in enumerate(self._supplies):
            for first in filler.able(index):
                for part in (0.25, 0.5, 0.75):
                    self._fillings -= 1
                    pattern, worth = filler.balanced(index, first, part)
                    if worth / supply.price > 1.0 + _GAIN:
                        return (worth / supply.price, index, pattern)
                if self._fillings <= 0:
                    return best
        return best

    def _swap_in(self, index: int, pattern: Pattern) -> bool:
        """Put a filling into the basis in the place of the one that reaches zero first."""
        column = [sum([row[item] * n for item, n in pattern]) for row in self._inverse]
        leaving = -1
        least = 0.0
        for row, step in enumerate(column):
            if step > _TOLERANCE:
                ratio = self.amounts[row] / step
                if leaving < 0 or ratio < least - _TOLERANCE:
                    leaving, least = row, ratio
        if leaving < 0:
            return False
        pivot = [a / column[leaving] for a in self._inverse[leaving]]
        self._inverse = [
            pivot if row == leaving else [a - step * p for a, p in zip(old, pivot, strict=True)]
            for row, (old, step) in enumerate(zip(self._inverse, column, strict=True))
        ]
        self.supply[leaving], self.patterns[leaving] = index, pattern
        self.amounts = self._solve(self._demand)
        return True
