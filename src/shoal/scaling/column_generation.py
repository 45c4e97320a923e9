"""Column generation for the linear relaxation of the instance mix.

The master problem is a linear program over patterns (what one bin holds); its dual prices value the
items. The pricing problem looks for a pattern whose items are worth more than its bin costs,
heuristically, with the greedy packer; the pattern enters the basis by a simplex pivot. Repeat until
no pattern improves. The basis is as wide as the number of distinct items, so callers use this for
up to `MAX_COLUMN_ITEMS` items and fall back to greedy packing beyond.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.scaling.greedy_packing import BinType, GreedyPacker, Pattern, copies_that_fit
from shoal.scaling.resource_vectors import Item, ResourceSpace

MAX_COLUMN_ITEMS = 40
_TOLERANCE = 1e-9
_MIN_GAIN = 1e-6
# Pivots in a degenerate basis change nothing at first; with more than these they go in circles.
_MAX_IDLE_PIVOTS = 10


class FractionalMix:
    """The current basic solution: `amounts[row]` bins of type `basis_types[row]`, each filled with
    `patterns[row]`, hold all items. `values` are the dual prices of the items."""

    def __init__(
        self, space: ResourceSpace, items: Sequence[Item], bin_types: Sequence[BinType]
    ) -> None:
        self._bin_types = bin_types
        self._packer = GreedyPacker(space, items, bin_types, [1.0] * len(items))
        self._demand = [float(item.count) for item in items]
        self.basis_types: list[int] = []
        self.patterns: list[Pattern] = []
        width = len(items)
        # Inverse of the basis matrix, whose columns are the patterns in the basis.
        self._inverse = [[0.0] * width for _ in range(width)]
        for row, item in enumerate(items):
            _, best, copies = min(
                (bin_type.price / n, index, n)
                for index, bin_type in enumerate(bin_types)
                if (n := copies_that_fit(space, bin_type, item))
            )
            self.basis_types.append(best)
            self.patterns.append(((row, copies),))
            self._inverse[row][row] = 1.0 / copies
        self.amounts = self._solve(self._demand)
        self.values = self._dual_prices()

    def improve(self, max_patterns: int) -> None:
        """Pivot until no improving pattern is found, the cost no longer falls, or `max_patterns`
        have been tried."""
        self._patterns_left = max_patterns
        lowest, pivots_since = self._cost(), 0
        while self._patterns_left > 0 and pivots_since <= len(self._demand) + _MAX_IDLE_PIVOTS:
            gain, index, pattern = self._best_column()
            if gain <= 1.0 + _MIN_GAIN or not self._pivot(index, pattern):
                return
            self.values = self._dual_prices()
            pivots_since += 1
            if self._cost() < lowest * (1.0 - _TOLERANCE):
                lowest, pivots_since = self._cost(), 0

    def _cost(self) -> float:
        pairs = zip(self.basis_types, self.amounts, strict=True)
        return sum([self._bin_types[index].price * amount for index, amount in pairs])

    def _solve(self, demand: Sequence[float]) -> list[float]:
        return [sum([a * d for a, d in zip(row, demand, strict=True)]) for row in self._inverse]

    def _dual_prices(self) -> list[float]:
        values = [0.0] * len(self._demand)
        for bin_type, row in zip(self.basis_types, self._inverse, strict=True):
            price = self._bin_types[bin_type].price
            values = [v + price * a for v, a in zip(values, row, strict=True)]
        return [max(v, 0.0) for v in values]

    def _best_column(self) -> tuple[float, int, Pattern]:
        """The pattern with the highest value per price from the fast heuristics; if none improves,
        the first improving one from the slow heuristic."""
        packer = self._packer
        packer.set_values(self.values)
        best: tuple[float, int, Pattern] = (0.0, -1, ())
        for index, bin_type in enumerate(self._bin_types):
            self._patterns_left -= 1
            for pattern, value in (packer.pattern(index), packer.balanced_pattern(index)):
                if value / bin_type.price > best[0] + _TOLERANCE:
                    best = (value / bin_type.price, index, pattern)
        if best[0] > 1.0 + _MIN_GAIN:
            return best
        for index, bin_type in enumerate(self._bin_types):
            for first in packer.fitting_items(index):
                for part in (0.25, 0.5, 0.75):
                    self._patterns_left -= 1
                    pattern, value = packer.balanced_pattern(index, first, part)
                    if value / bin_type.price > 1.0 + _MIN_GAIN:
                        return (value / bin_type.price, index, pattern)
                if self._patterns_left <= 0:
                    return best
        return best

    def _pivot(self, index: int, pattern: Pattern) -> bool:
        """Let a pattern enter the basis; the one that reaches zero first leaves (ratio test)."""
        column = [sum([row[item] * n for item, n in pattern]) for row in self._inverse]
        leaving = -1
        min_ratio = 0.0
        for row, step in enumerate(column):
            if step > _TOLERANCE:
                ratio = self.amounts[row] / step
                if leaving < 0 or ratio < min_ratio - _TOLERANCE:
                    leaving, min_ratio = row, ratio
        if leaving < 0:
            return False
        pivot = [a / column[leaving] for a in self._inverse[leaving]]
        self._inverse = [
            pivot if row == leaving else [a - step * p for a, p in zip(old, pivot, strict=True)]
            for row, (old, step) in enumerate(zip(self._inverse, column, strict=True))
        ]
        self.basis_types[leaving], self.patterns[leaving] = index, pattern
        self.amounts = self._solve(self._demand)
        return True
