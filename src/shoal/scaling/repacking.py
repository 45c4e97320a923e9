"""Packing by moving items: what best fit leaves over is placed by moving other items to other bins.

For demand that just fits: an item that has no room takes the place of one or two others, which are
placed elsewhere in the same way (ejection chains). The bundles of a STRICT_SPREAD gang are placed
and moved like other items, but never share a bin. Bounded by steps, so that equal input gives
equal answers; when the steps run out the answer is that the items do not fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from shoal.scaling.exact_search import Bin
from shoal.scaling.resource_vectors import Item, ResourceSpace, Vector, copies

MAX_BINS_REPACKED = 200
MAX_ITEMS_REPACKED = 1_000
# More than this cannot be placed by moving others.
MAX_LEFT = 20
REPACK_STEPS = 3_000
# How many items one item may displace, and how long a chain may be.
_MAX_DISPLACED = 4
_MAX_DEPTH = 3


def repack(
    space: ResourceSpace,
    items: Sequence[Item],
    bins: Sequence[Bin],
    steps: int = REPACK_STEPS,
    *,
    spread: Sequence[Sequence[Item]] = (),
) -> list[Vector] | None:
    """What is left free in each bin once all items and the STRICT_SPREAD gangs `spread` are packed;
    None if no packing is found."""
    kinds = [(item, number) for number, gang in enumerate(spread, 1) for item in gang]
    kinds += [(item, 0) for item in items if item.count]
    count = sum(item.count for item, _ in kinds)
    if len(bins) > MAX_BINS_REPACKED or count > MAX_ITEMS_REPACKED:
        return None
    if not all(_fits_alone(space, item, bins) for item, _ in kinds):
        return None
    by_hardness = sorted(kinds, key=lambda kind: kind[0].hardness)
    by_size = sorted(by_hardness, key=lambda kind: -space.size(kind[0]))
    for ordered in (by_hardness, by_size):
        free = _Repacking(space, ordered, bins, steps).search()
        if free is not None:
            return free
    return None


def _fits_alone(space: ResourceSpace, item: Item, bins: Sequence[Bin]) -> bool:
    """Whether there would be room for all copies of an item if there were no others."""
    return item.count <= sum(
        copies(free, item) for free, labels in bins if space.matches(item.selector, labels)
    )


class _Repacking:
    """One search, with the items in the order in which they are first placed."""

    def __init__(
        self,
        space: ResourceSpace,
        kinds: Sequence[tuple[Item, int]],
        bins: Sequence[Bin],
        steps: int,
    ) -> None:
        self._items = [item for item, _ in kinds]
        # The kinds that may not be in the same bin, itself included.
        self._apart = [
            frozenset(k for k, (_, other) in enumerate(kinds) if gang and other == gang)
            for _, gang in kinds
        ]
        self._weight = space.weight
        self._free = [list(free) for free, _ in bins]
        self._labels = [labels for _, labels in bins]
        self._slack = [self._slack_of(b) for b in range(len(bins))]
        self._contents = [[0] * len(self._items) for _ in bins]
        self._matching = [
            [b for b, (_, labels) in enumerate(bins) if space.matches(item.selector, labels)]
            for item in self._items
        ]
        self._changes: list[tuple[int, int, int]] = []
        self._steps = steps

    def search(self) -> list[Vector] | None:
        left = [kind for kind, item in enumerate(self._items) for _ in range(item.count)]
        left = [kind for kind in left if not self._place_in_free(kind)]
        if len(left) > MAX_LEFT or not all(self._place(kind) for kind in left):
            return None
        return [tuple(free) for free in self._free]

    def _place(self, kind: int) -> bool:
        """Place an item, with as few moves as possible."""
        return any(self._place_within(kind, depth, None) for depth in range(_MAX_DEPTH + 1))

    def _place_within(self, kind: int, depth: int, avoided: int | None) -> bool:
        self._steps -= 1
        if self._steps < 0:
            return False
        if self._place_in_free(kind, avoided):
            return True
        if not depth:
            return False
        tried = set()
        for b in sorted(self._matching[kind], key=self._slack.__getitem__):
            # Bins with the same contents lead to the same moves.
            like_others = (*self._free[b], *self._contents[b], self._labels[b])
            if b == avoided or like_others in tried:
                continue
            tried.add(like_others)
            for displaced in self._displaceable(kind, b):
                before = len(self._changes)
                for other in displaced:
                    self._change(b, other, -1)
                self._change(b, kind, 1)
                if all(self._place_within(other, depth - 1, b) for other in displaced):
                    return True
                self._undo(before)
                if self._steps < 0:
                    return False
        return False

    def _place_in_free(self, kind: int, avoided: int | None = None) -> bool:
        """Place an item where the least is left over."""
        nonzero, apart = self._items[kind].nonzero, self._apart[kind]
        slack = self._slack
        best = -1
        for b in self._matching[kind]:
            if best >= 0 and slack[b] >= slack[best]:
                continue
            free = self._free[b]
            for axis, amount in nonzero:
                if free[axis] < amount:
                    break
            else:
                if b != avoided and not (apart and any(self._contents[b][k] for k in apart)):
                    best = b
        if best >= 0:
            self._change(best, kind, 1)
        return best >= 0

    def _displaceable(self, kind: int, b: int) -> Iterator[tuple[int, ...]]:
        """Which items of a bin an item could replace."""
        contents = tuple(self._contents[b])
        lacking = [(a, n - self._free[b][a]) for a, n in self._items[kind].nonzero]
        lacking = [(a, n) for a, n in lacking if n > 0]
        present = [k for k, n in enumerate(contents) if n and k != kind]
        if self._apart[kind] and contents[kind]:
            return  # a copy of itself would take its place
        in_the_way = self._apart[kind].intersection(present)
        amounts = [item.amounts for item in self._items]
        for count in range(1, _MAX_DISPLACED + 1):
            for displaced in itertools.combinations_with_replacement(present, count):
                self._steps -= 1
                if self._steps < 0:
                    return
                if any(displaced.count(k) > contents[k] for k in displaced):
                    continue
                if in_the_way and not in_the_way.issubset(displaced):
                    continue
                if all(sum([amounts[k][a] for k in displaced]) >= n for a, n in lacking):
                    yield displaced

    def _change(self, b: int, kind: int, sign: int) -> None:
        """Put an item in a bin, or take it out."""
        self._changes.append((b, kind, sign))
        self._apply(b, kind, sign)

    def _undo(self, before: int) -> None:
        """Take back all changes but the first ones."""
        while len(self._changes) > before:
            b, kind, sign = self._changes.pop()
            self._apply(b, kind, -sign)

    def _apply(self, b: int, kind: int, sign: int) -> None:
        free = self._free[b]
        self._contents[b][kind] += sign
        for axis, amount in self._items[kind].nonzero:
            free[axis] -= sign * amount
        self._slack[b] = self._slack_of(b)

    def _slack_of(self, b: int) -> float:
        return sum([f * w for f, w in zip(self._free[b], self._weight, strict=True)])
