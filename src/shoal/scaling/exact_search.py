"""Exact search for small cases: do these items fit, and what is the cheapest set of bins?

`pack_exactly` is a depth-first search over item placements with symmetry breaking. `cheapest_set`
is best-first branch and bound over multisets of bin types. Both are bounded by steps rather than by
time, so that equal input gives equal answers. When the steps run out the answer is no, and the
caller keeps its greedy solution.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.scaling.greedy_packing import BinType, copies_that_fit
from shoal.scaling.packing_bounds import cannot_fit
from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

Bin = tuple[Vector, LabelClass]

MAX_BINS = 14
MAX_ITEMS = 24
PACK_STEPS = 4_000
# For many sets of bins one after the other.
QUICK_PACK_STEPS = 1_500
COVER_STEPS = 1_500
COPIES_STEPS = 5_000
# Differences below this part of the cheapest bin are rounding errors.
_MIN_SAVING = 1e-10


def pack_exactly(
    space: ResourceSpace, items: Sequence[Item], bins: Sequence[Bin], steps: int = PACK_STEPS
) -> list[Vector] | None:
    """What is left free in each bin once all items are packed; None if they do not fit."""
    return _PackingSearch(space, [(i, 0) for i in items], bins, steps).search()


def distinct_bins_pack(
    space: ResourceSpace,
    gangs: Sequence[Sequence[Item]],
    items: Sequence[Item],
    bins: Sequence[Bin],
    steps: int = PACK_STEPS,
) -> bool:
    """Whether all items fit in the bins, and the gangs with every bundle of a gang in a bin of its
    own."""
    bundles = [(item, number) for number, gang in enumerate(gangs, 1) for item in gang]
    return (
        _PackingSearch(space, [*bundles, *((i, 0) for i in items)], bins, steps).search()
        is not None
    )


class _PackingSearch:
    """Depth-first search: hardest items first, as many copies as possible in the fullest bin. An
    item with a gang number shares no bin with another of that number, or with a copy of itself."""

    def __init__(
        self,
        space: ResourceSpace,
        items: Sequence[tuple[Item, int]],
        bins: Sequence[Bin],
        steps: int,
    ) -> None:
        ordered_items = sorted(
            (entry for entry in items if entry[0].count),
            key=lambda entry: (entry[1] == 0, entry[0].hardness, entry[1]),
        )
        self._items = [item for item, _ in ordered_items]
        self._gangs = [gang for _, gang in ordered_items]
        self._order = sorted(
            range(len(bins)),
            key=lambda b: (
                sum(map(float.__mul__, map(float, bins[b][0]), space.weight)),
                bins[b],
                b,
            ),
        )
        ordered = [bins[b] for b in self._order]
        self._free = [list(free) for free, _ in ordered]
        self._space = space
        self._bin_groups = [(*bin_, n) for bin_, n in Counter(ordered).items()]
        self._matching = [
            [space.matches(i.selector, labels) for _, labels in ordered] for i in self._items
        ]
        self._labels = [labels for _, labels in ordered]
        self._gangs_in: list[frozenset[int]] = [frozenset()] * len(bins)
        self._failed: set[object] = set()
        self._last_short = 0
        self._steps = steps

    def search(self) -> list[Vector] | None:
        if cannot_fit(self._space, self._items, self._bin_groups) or not self._place_item(0):
            return None
        free = dict(zip(self._order, map(tuple, self._free), strict=True))
        return [free[b] for b in range(len(free))]

    def _copies(self, item: int, bin_: int) -> int:
        if not self._matching[item][bin_]:
            return 0
        free = self._free[bin_]
        limit = self._items[item].count
        if gang := self._gangs[item]:
            if gang in self._gangs_in[bin_]:
                return 0
            limit = 1
        for axis, amount in self._items[item].nonzero:
            limit = min(limit, free[axis] // amount)
        return limit

    def _place_item(self, item: int) -> bool:
        if item == len(self._items):
            return True
        bins = range(len(self._free))
        # What did not fit last time is checked first.
        for later in (max(item, self._last_short), *range(item, len(self._items))):
            if sum([self._copies(later, b) for b in bins]) < self._items[later].count:
                self._last_short = later
                return False
        copies_after = [0]
        for b in reversed(bins):
            copies_after.append(copies_after[-1] + self._copies(item, b))
        copies_after.reverse()
        # Another placement of the items before may have left the same.
        bins_left = Counter(zip(map(tuple, self._free), self._labels, self._gangs_in, strict=True))
        state = (item, frozenset(bins_left.items()))
        if state in self._failed:
            return False
        if self._place_copies(item, 0, self._items[item].count, copies_after, None):
            return True
        self._failed.add(state)
        return False

    def _place_copies(
        self,
        item: int,
        bin_: int,
        left: int,
        copies_after: list[int],
        previous: tuple[object, int] | None,
    ) -> bool:
        """Place `left` copies in this bin and the following ones. A bin equal to the previous one
        takes at most as many copies as that one did: the mirrored placement has been tried."""
        if not left:
            return self._place_item(item + 1)
        self._steps -= 1
        if self._steps < 0:
            return False
        free, nonzero = self._free[bin_], self._items[item].nonzero
        gang, gangs_before = self._gangs[item], self._gangs_in[bin_]
        before = (tuple(free), self._labels[bin_], gangs_before)
        limit = min(left, self._copies(item, bin_))
        if previous and previous[0] == before:
            limit = min(limit, previous[1])
        fewest = max(0, left - copies_after[bin_ + 1])
        for copies in range(limit, fewest - 1, -1):
            for axis, amount in nonzero:
                free[axis] -= amount * copies
            if gang and copies:
                self._gangs_in[bin_] = gangs_before | {gang}
            if self._place_copies(item, bin_ + 1, left - copies, copies_after, (before, copies)):
                return True
            for axis, amount in nonzero:
                free[axis] += amount * copies
            self._gangs_in[bin_] = gangs_before
            if self._steps < 0:
                return False
        return False


@dataclass(frozen=True)
class CoverOption:
    """A bin type that holds some copies of an item, with its price and limit."""

    index: int
    copies: int
    price: float
    limit: float


def cheapest_copies(
    options: Sequence[CoverOption], count: int, total_limit: float, steps: int = COPIES_STEPS
) -> dict[int, int]:
    """How many bins of each option hold this many copies of one item at the lowest price; as many
    copies as possible if the limits do not allow all. Exact unless the steps run out."""
    return _CopiesSearch(options, count, total_limit, steps).search()


class _CopiesSearch:
    """Depth-first branch and bound over the number of bins of each option, cheapest per copy
    first."""

    def __init__(
        self, options: Sequence[CoverOption], count: int, total_limit: float, steps: int
    ) -> None:
        self._options = sorted(options, key=lambda o: (o.price / o.copies, -o.copies, o.index))
        self._count = count
        self._total_limit = total_limit
        self._steps = steps
        self._best_cost = math.inf
        self._best: dict[int, int] = {}

    def search(self) -> dict[int, int]:
        self._fill_with_largest()
        if not math.isinf(self._best_cost):
            self._extend(0, self._count, self._total_limit, 0.0, {})
        return self._best

    def _fill_with_largest(self) -> None:
        """The fewest bins: feasible if anything is."""
        left, allowed, cost = self._count, self._total_limit, 0.0
        for option in sorted(self._options, key=lambda o: (-o.copies, o.price, o.index)):
            n = int(min(-(-left // option.copies), option.limit, allowed))
            if n > 0:
                self._best[option.index] = n
                left -= n * option.copies
                allowed -= n
                cost += n * option.price
            if left <= 0:
                self._best_cost = cost
                return

    def _extend(
        self, number: int, left: int, allowed: float, cost: float, chosen: dict[int, int]
    ) -> None:
        if left <= 0:
            if cost < self._best_cost:
                self._best_cost, self._best = cost, dict(chosen)
            return
        self._steps -= 1
        if self._steps < 0 or number == len(self._options) or allowed <= 0:
            return
        if cost + self._bound(number, left) >= self._best_cost:
            return
        option = self._options[number]
        most = int(min(-(-left // option.copies), option.limit, allowed))
        for n in range(most, -1, -1):
            if n:
                chosen[option.index] = n
            else:
                chosen.pop(option.index, None)
            self._extend(
                number + 1, left - n * option.copies, allowed - n, cost + n * option.price, chosen
            )
            # With fewer of the cheapest, the rest costs at least what the next cheapest does.
            fewer = left - (n - 1) * option.copies
            next_cost = cost + (n - 1) * option.price
            if self._steps < 0 or next_cost + self._bound(number + 1, fewer) >= self._best_cost:
                chosen.pop(option.index, None)
                return

    def _bound(self, number: int, left: int) -> float:
        """The cost of the copies that are left if bins could be divided."""
        cost = 0.0
        for option in self._options[number:]:
            copies = min(left, option.limit * option.copies)
            cost += copies * option.price / option.copies
            left -= int(copies)
            if left <= 0:
                return cost
        return math.inf


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
    bounds = CoverBounds(space, items, [(*b, 1) for b in bins], bin_types)

    def fits(chosen: tuple[int, ...]) -> bool:
        extra = [(bin_types[t].capacity, bin_types[t].labels) for t in chosen]
        return pack_exactly(space, items, [*bins, *extra], pack_steps) is not None

    total_limit = min(total_limit, MAX_BINS - len(bins))
    return cheapest_set(bin_types, limits, total_limit, max_cost, [bounds], fits, steps=steps)


def cheapest_set(
    bin_types: Sequence[BinType],
    limits: Sequence[float],
    total_limit: float,
    max_cost: float,
    bounds: Sequence[CoverBounds],
    fits: Callable[[tuple[int, ...]], bool],
    *,
    steps: int = COVER_STEPS,
) -> list[int] | None:
    """How many bins of each type suffice at the lowest cost, if that is below `max_cost`. `fits`
    says whether a set suffices; it is asked only about sets that no bound rules out."""
    max_cost -= _MIN_SAVING * min((b.price for b in bin_types), default=0.0)
    first = max(bound.of(()) for bound in bounds)
    heap: list[tuple[float, float, tuple[int, ...]]] = [(first, 0.0, ())]
    while heap and steps > 0:
        _, cost, chosen = heapq.heappop(heap)
        steps -= 1
        if all(bound.could_hold(chosen) for bound in bounds) and fits(chosen):
            return [chosen.count(t) for t in range(len(bin_types))]
        if len(chosen) >= total_limit:
            continue
        for t in range(chosen[-1] if chosen else 0, len(bin_types)):
            group = bin_types[t].group
            if sum(bin_types[c].group == group for c in chosen) >= limits[group]:
                continue
            more = (*chosen, t)
            total = cost + bin_types[t].price
            estimate = total + max(bound.of(more) for bound in bounds)
            if estimate < max_cost:
                heapq.heappush(heap, (estimate, total, more))
    return None


class CoverBounds:
    """Lower bounds on the cost of covering the items beside existing bins, which are given with
    their numbers: per resource, and per item on its own."""

    def __init__(
        self,
        space: ResourceSpace,
        items: Sequence[Item],
        bins: Sequence[tuple[Vector, LabelClass, int]],
        bin_types: Sequence[BinType],
    ) -> None:
        axes = range(len(space.names))

        def provides(bin_type: BinType, count: int = 1) -> list[int]:
            return [bin_type.capacity[a] * count for a in axes] + [
                copies_that_fit(space, bin_type, i) * count for i in items
            ]

        self._provides = [provides(bin_type) for bin_type in bin_types]
        existing = [provides(BinType(free, labels, 0, 0.0, 0), n) for free, labels, n in bins]
        provided = [sum(column) for column in zip(*existing, strict=True)]
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

    def of(self, chosen: tuple[int, ...]) -> float:
        """The lowest possible cost of what is still missing."""
        prices = zip(self._missing(chosen), self._unit_price, strict=True)
        return max((m * price for m, price in prices if m > 0), default=0.0)

    def could_hold(self, chosen: tuple[int, ...]) -> bool:
        """Whether no resource and no item is obviously short."""
        return all(m <= 0 for m in self._missing(chosen))
