"""Quick proofs that items do not fit, so that no time is lost looking for a packing.

For a resource and a unit, an amount counts as the number of whole units in it. Items in a bin have
at most as many units as the bin has, because rounding down a sum loses no more than rounding down
its parts. So if the items that fit only in some of the bins have more units than those bins, not
all of the items fit. With the size of an item as the unit, space that no item can use is not
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

_MAX_UNITS = 24
# With more pairs of item and bin, only the sums over all bins are compared: looking at every pair
# would take longer than looking for a packing.
_MAX_PAIRS = 10_000

BinGroup = tuple[Vector, LabelClass, int]  # free capacity, labels, number of such bins


def cannot_fit(space: ResourceSpace, items: Sequence[Item], bins: Sequence[BinGroup]) -> bool:
    """Whether it is certain that not all items fit. False says nothing."""
    items = [item for item in items if item.count]
    if len(items) * len(bins) > _MAX_PAIRS:
        return _exceeds_sums(items, bins)
    suitable = [_suitable_bins(space, item, bins) for item in items]
    for fitting in set(suitable):
        confined = [i for i, s in zip(items, suitable, strict=True) if not s & ~fitting]
        within = [b for number, b in enumerate(bins) if fitting >> number & 1]
        if _exceeds(confined, within):
            return True
    return False


def _suitable_bins(space: ResourceSpace, item: Item, bins: Sequence[BinGroup]) -> int:
    """The bins in which one copy of the item fits, as bits."""
    mask = 0
    for number, (free, labels, _) in enumerate(bins):
        if space.matches(item.selector, labels) and all(free[a] >= n for a, n in item.nonzero):
            mask |= 1 << number
    return mask


def _exceeds(items: Sequence[Item], bins: Sequence[BinGroup]) -> bool:
    for axis in range(len(items[0].amounts)):
        for unit, needed in needed_units(items, axis):
            if needed > sum([free[axis] // unit * count for free, _, count in bins]):
                return True
    return False


def _exceeds_sums(items: Sequence[Item], bins: Sequence[BinGroup]) -> bool:
    for axis in range(len(items[0].amounts)):
        needed = sum([item.amounts[axis] * item.count for item in items])
        if needed > sum([free[axis] * count for free, _, count in bins]):
            return True
    return False


def needed_units(items: Sequence[Item], axis: int) -> Iterator[tuple[int, int]]:
    """Units of a resource, and how many whole ones the items need of each: the smallest unit there
    is, and the sizes of items, of which only some if there are many."""
    needs = [(i.amounts[axis], i.count) for i in items if i.amounts[axis]]
    sizes = sorted({amount for amount, _ in needs})
    step = -(-len(sizes) // _MAX_UNITS) or 1
    for unit in (1, *sizes[::step]):
        yield unit, sum([amount // unit * count for amount, count in needs])
