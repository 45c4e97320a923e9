"""The cheapest mix of instances that holds some items: variable-sized vector bin packing.

Small cases are solved exactly by branch and bound. Larger ones take the better of two heuristics:
greedy packing, repeated with item values taken from the last result, and the linear relaxation from
column generation, rounded down and completed greedily. A local search then replaces the least
efficient bins, a few at a time, with an exact solution for their items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.scaling.column_generation import MAX_COLUMN_ITEMS, FractionalMix
from shoal.scaling.exact_search import Bin, CoverOption, cheapest_copies, cheapest_cover
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.greedy_packing import (
    BinType,
    GreedyPacker,
    PackedBins,
    copies_that_fit,
    item_values,
)
from shoal.scaling.resource_vectors import Item, ResourceSpace

# Mixes up to this size are solved exactly.
MAX_EXACT_INSTANCES = 8
# How many bins the local search replaces at a time.
WINDOW = 5
# Greedy packing is repeated only while items x bin types stays below this.
MAX_GREEDY_WORK = 8_000
# The same where only the packing counts, because the bins exist.
MAX_PACKING_WORK = 2_000
# A round that looks at more items than this, for all the bins that it packs, is the last.
MAX_ITEM_VISITS = 1_000_000
# How many patterns column generation may try.
MAX_PATTERNS = 1_500
# Up to so many items, bins are also selected for one item after the other.
MAX_SEQUENTIAL_ITEMS = 20


@dataclass(frozen=True)
class Mix:
    """How many bins of each type, how many of each item are left over, and the total cost."""

    counts: tuple[int, ...]
    left: tuple[int, ...]
    cost: float

    @property
    def total(self) -> int:
        """The number of bins in total."""
        return sum(self.counts)


@dataclass(frozen=True)
class MixProblem:
    """Items to hold, bin types to choose from, and the limits per group and in total."""

    space: ResourceSpace
    items: Sequence[Item]
    bin_types: Sequence[BinType]
    limits: Sequence[float]
    total_limit: float = math.inf


def cheapest_mix(problem: MixProblem) -> Mix:
    """The best mix found."""
    if len(problem.items) == 1:
        return _mix_for_one_item(problem)
    values = item_values(problem.space, problem.items, problem.bin_types)
    mix, packed = _greedy(problem, values)
    if not any(mix.left) and mix.total <= MAX_EXACT_INSTANCES:
        return exact_mix(problem, (), mix)
    if len(problem.items) <= MAX_COLUMN_ITEMS:
        other, other_packed = _rounded_relaxation(problem)
        if _rank(other, values) < _rank(mix, values):
            mix, packed = other, other_packed
    if not any(mix.left):
        mix = _improved(problem, mix, packed)
    if len(problem.items) <= MAX_SEQUENTIAL_ITEMS:
        mix = min(mix, _item_by_item(problem), key=lambda other: _rank(other, values))
    return _merged(problem, mix)


def _item_by_item(problem: MixProblem) -> Mix:
    """Bins for the hardest item alone, then for what of the next does not fit beside it, and so on.
    Each is solved exactly within the limits."""
    counts = [0] * len(problem.bin_types)
    left = [0] * len(problem.items)
    limits, total_limit = list(problem.limits), problem.total_limit
    free_capacity = FreeCapacity(problem.space)
    order = sorted(range(len(problem.items)), key=lambda i: problem.items[i].hardness)
    for i in order:
        (remaining,) = free_capacity.pack([problem.items[i]])
        if not remaining:
            continue
        item = problem.space.resized(problem.items[i], remaining)
        mix = _mix_for_one_item(
            replace(problem, items=[item], limits=limits, total_limit=total_limit)
        )
        for index, n in enumerate(mix.counts):
            if n:
                b = problem.bin_types[index]
                counts[index] += n
                limits[b.group] -= n
                total_limit -= n
                free_capacity.add(b.capacity, b.labels, b.scarce, b.price, True, n)
        (left[i],) = free_capacity.pack([item])
    return _mix_of(problem, counts, left)


def _mix_for_one_item(problem: MixProblem) -> Mix:
    (item,) = problem.items
    options: dict[int, CoverOption] = {}
    for index, bin_type in enumerate(problem.bin_types):
        copies = copies_that_fit(problem.space, bin_type, item)
        group, limit = bin_type.group, problem.limits[bin_type.group]
        # Bin types of a group differ only in labels, so that one of them is enough.
        if copies and limit > 0 and (group not in options or bin_type.price < options[group].price):
            options[group] = CoverOption(index, copies, bin_type.price, limit)
    counts = cheapest_copies(list(options.values()), item.count, problem.total_limit)
    held = sum(counts.get(o.index, 0) * o.copies for o in options.values())
    all_counts = [counts.get(i, 0) for i in range(len(problem.bin_types))]
    return _mix_of(problem, all_counts, [max(0, item.count - held)])


def _merged(problem: MixProblem, mix: Mix) -> Mix:
    """The mix with several bins replaced by one that is as large as all of them together, where
    that costs no more: fewer instances boot, join and fail less."""
    counts = list(mix.counts)
    limits = list(problem.limits)
    for index, n in enumerate(counts):
        limits[problem.bin_types[index].group] -= n
    for large in sorted(range(len(counts)), key=lambda i: -problem.bin_types[i].price):
        for small in range(len(counts)):
            a, b = problem.bin_types[small], problem.bin_types[large]
            most = min(
                (y // x for x, y in zip(a.capacity, b.capacity, strict=True) if x), default=0
            )
            fewest = math.ceil(b.price / a.price - 1e-9)
            if a.labels != b.labels or not 1 < fewest <= most:
                continue
            merged = min(counts[small] // most, limits[b.group])
            if merged > 0:
                counts[small] -= int(merged) * most
                counts[large] += int(merged)
                limits[a.group] += merged * most
                limits[b.group] -= merged
    return _mix_of(problem, counts, mix.left)


def best_packing(problem: MixProblem) -> tuple[tuple[int, ...], list[PackedBins]]:
    """How many of each item do not fit regardless of price, because the bins exist already, and how
    the others are packed."""
    values = item_values(problem.space, problem.items, problem.bin_types)
    mix, packed = _greedy(problem, values, ignore_price=True)
    if any(mix.left) and len(problem.items) <= MAX_COLUMN_ITEMS:
        other, other_packed = _rounded_relaxation(problem)
        if _rank(other, values) < _rank(mix, values):
            mix, packed = other, other_packed
    return mix.left, packed


def _rounded_relaxation(problem: MixProblem) -> tuple[Mix, list[PackedBins]]:
    """The fractional mix, rounded down, completed greedily."""
    fractional = FractionalMix(problem.space, problem.items, problem.bin_types)
    fractional.improve(MAX_PATTERNS)
    packed: list[PackedBins] = []
    left = [item.count for item in problem.items]
    limits = list(problem.limits)
    total_limit = problem.total_limit
    rows = zip(fractional.basis_types, fractional.patterns, fractional.amounts, strict=True)
    for bin_type, pattern, amount in sorted(rows, key=lambda row: -row[2]):
        group = problem.bin_types[bin_type].group
        repeats = min(left[item] // copies for item, copies in pattern)
        count = int(min(amount + 1e-6, repeats, limits[group], total_limit))
        if count > 0:
            packed.append(PackedBins(bin_type, pattern, count))
            limits[group] -= count
            total_limit -= count
            for item, copies in pattern:
                left[item] -= copies * count
    remaining = [problem.space.resized(i, n) for i, n in zip(problem.items, left, strict=True)]
    _, more = _greedy(
        MixProblem(problem.space, remaining, problem.bin_types, limits, total_limit),
        fractional.values,
    )
    for bins in more:
        for item, copies in bins.pattern:
            left[item] -= copies * bins.count
    packed += more
    return _mix_from_bins(problem, packed, left), packed


def _greedy(
    problem: MixProblem, values: Sequence[float], *, ignore_price: bool = False
) -> tuple[Mix, list[PackedBins]]:
    """The cheapest of several greedy packings. Where the total limit leaves items over, a surcharge
    makes larger bins look cheaper, and the packing that leaves least wins. With `ignore_price`, the
    first packing that leaves nothing."""
    size = max(1, len(problem.items) * len(problem.bin_types))
    work = MAX_PACKING_WORK if ignore_price else MAX_GREEDY_WORK
    rounds = max(1, min(6, work // size))
    highest_price = max((b.price for b in problem.bin_types), default=0.0)
    mixes: list[tuple[Mix, list[PackedBins]]] = []
    visits = 0
    as_many_as_possible = [1.0] * len(values)
    starts = [(0.0, values)]
    if len(problem.bin_types) > 1:
        starts += [(highest_price, values), (highest_price * 100, values)]
    for surcharge, start in (*starts, (highest_price * 100, as_many_as_possible)):
        prices = list(start)
        for _ in range(rounds):
            packer = GreedyPacker(problem.space, problem.items, problem.bin_types, prices)
            packed = packer.pack(problem.limits, problem.total_limit, surcharge)
            mixes.append((_mix_from_bins(problem, packed, packer.left), packed))
            if ignore_price and not any(packer.left):
                return mixes[-1]
            visits += len(packed) * len(problem.items)
            if visits > MAX_ITEM_VISITS:
                break
            if rounds > 1:
                prices = _updated_values(problem, packed, prices)
        if not all(any(mix.left) for mix, _ in mixes):
            break
    return min(mixes, key=lambda result: _rank(result[0], values))


def _rank(mix: Mix, values: Sequence[float]) -> tuple[int, float, float, tuple[int, ...]]:
    """Fewer items left over are better, then the lower cost, then less valuable items left."""
    left = sum(n * v for n, v in zip(mix.left, values, strict=True))
    return (sum(mix.left), mix.cost, left, mix.counts)


def _mix_from_bins(problem: MixProblem, packed: Sequence[PackedBins], left: Sequence[int]) -> Mix:
    counts = [0] * len(problem.bin_types)
    for bins in packed:
        counts[bins.bin_type] += bins.count
    return _mix_of(problem, counts, left)


def _mix_of(problem: MixProblem, counts: Sequence[int], left: Sequence[int]) -> Mix:
    cost = sum(n * b.price for n, b in zip(counts, problem.bin_types, strict=True))
    return Mix(tuple(counts), tuple(left), cost)


def _updated_values(
    problem: MixProblem, packed: Sequence[PackedBins], values: Sequence[float]
) -> list[float]:
    """Each item's share of the price of its bins: items that ended up in badly filled bins are
    worth more in the next round."""
    paid = [0.0] * len(values)
    placed = [0] * len(values)
    for bins in packed:
        total = sum(values[item] * copies for item, copies in bins.pattern)
        rate = problem.bin_types[bins.bin_type].price / total if total else 0.0
        for item, copies in bins.pattern:
            paid[item] += values[item] * copies * rate * bins.count
            placed[item] += copies * bins.count
    return [(v + p / n) / 2 if n else v for v, p, n in zip(values, paid, placed, strict=True)]


def exact_mix(problem: MixProblem, bins: Sequence[Bin], mix: Mix) -> Mix:
    """The cheapest mix that holds the items together with existing bins, if the search finds one
    cheaper than `mix`; otherwise `mix`."""
    better = cheapest_cover(
        problem.space,
        problem.items,
        bins,
        problem.bin_types,
        problem.limits,
        problem.total_limit,
        mix.cost,
    )
    return mix if better is None else _mix_of(problem, better, [0] * len(problem.items))


def _improved(problem: MixProblem, mix: Mix, packed: Sequence[PackedBins]) -> Mix:
    """Local search: remove the least efficient bins, a few at a time, and look for a cheaper set
    that holds the same items."""
    values = item_values(problem.space, problem.items, problem.bin_types)

    def efficiency(bins: PackedBins) -> float:
        value = sum(values[item] * copies for item, copies in bins.pattern)
        return value / problem.bin_types[bins.bin_type].price

    singles = [PackedBins(f.bin_type, f.pattern, 1) for f in packed for _ in range(min(f.count, 3))]
    singles.sort(key=lambda f: (efficiency(f), f.bin_type, f.pattern))
    bin_counts = list(mix.counts)
    for start in range(0, min(len(singles), 8 * WINDOW), WINDOW):
        window = singles[start : start + WINDOW]
        item_counts = [0] * len(problem.items)
        before = [0] * len(problem.bin_types)
        for f in window:
            before[f.bin_type] += 1
            for item, copies in f.pattern:
                item_counts[item] += copies
        items = [
            problem.space.resized(i, n) for i, n in zip(problem.items, item_counts, strict=True)
        ]
        limits = list(problem.limits)
        for index, bin_type in enumerate(problem.bin_types):
            limits[bin_type.group] -= bin_counts[index] - before[index]
        cost = sum(problem.bin_types[f.bin_type].price for f in window)
        total_limit = problem.total_limit - sum(bin_counts) + len(window)
        after = cheapest_cover(
            problem.space,
            items,
            (),
            problem.bin_types,
            limits,
            total_limit,
            cost,
            steps=200,
            pack_steps=300,
        )
        if after is not None:
            bin_counts = [m - b + a for m, b, a in zip(bin_counts, before, after, strict=True)]
    return _mix_of(problem, bin_counts, mix.left)
