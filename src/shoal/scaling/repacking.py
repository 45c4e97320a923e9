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
        self._contents = [[0] * len(self._items) for _ in bins]
        self._matches = [
            [space.matches(item.selector, labels) for _, labels in bins] for item in self._items
        ]
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
        for b in self._by_slack():
            if b == avoided or not self._matches[kind][b]:
                continue
            for displaced in self._displaceable(kind, b):
                self._change(b, displaced, -1)
                self._change(b, (kind,), 1)
                if self._place_all(displaced, depth - 1, b):
                    return True
                self._change(b, (kind,), -1)
                self._change(b, displaced, 1)
                if self._steps < 0:
                    return False
        return False

    def _place_all(self, kinds: Sequence[int], depth: int, avoided: int) -> bool:
        free = [list(f) for f in self._free]
        contents = [list(c) for c in self._contents]
        if all(self._place_within(kind, depth, avoided) for kind in kinds):
            return True
        self._free, self._contents = free, contents
        return False

    def _place_in_free(self, kind: int, avoided: int | None = None) -> bool:
        """Place an item where the least is left over."""
        nonzero, matches = self._items[kind].nonzero, self._matches[kind]
        for b in self._by_slack():
            free = self._free[b]
            if (
                b != avoided
                and matches[b]
                and all(free[axis] >= n for axis, n in nonzero)
                and not any(self._contents[b][k] for k in self._apart[kind])
            ):
                self._change(b, (kind,), 1)
                return True
        return False

    def _by_slack(self) -> list[int]:
        slack = [sum(f * w for f, w in zip(free, self._weight, strict=True)) for free in self._free]
        return sorted(range(len(slack)), key=slack.__getitem__)

    def _displaceable(self, kind: int, b: int) -> Iterator[tuple[int, ...]]:
        """Which items of a bin an item could replace."""
        contents = tuple(self._contents[b])
        free = tuple(self._free[b])
        present = [k for k, n in enumerate(contents) if n and k != kind]
        if self._apart[kind] and contents[kind]:
            return  # a copy of itself would take its place
        in_the_way = self._apart[kind].intersection(present)
        for count in range(1, _MAX_DISPLACED + 1):
            for displaced in itertools.combinations_with_replacement(present, count):
                self._steps -= 1
                if self._steps < 0:
                    return
                if any(displaced.count(k) > contents[k] for k in displaced):
                    continue
                if not in_the_way.issubset(displaced):
                    continue
                gained = [
                    sum(n) for n in zip(*(self._items[k].amounts for k in displaced), strict=True)
                ]
                if all(free[a] + gained[a] >= n for a, n in self._items[kind].nonzero):
                    yield displaced

    def _change(self, b: int, kinds: Sequence[int], sign: int) -> None:
        free = self._free[b]
        for kind in kinds:
            self._contents[b][kind] += sign
            for axis, amount in self._items[kind].nonzero:
                free[axis] -= sign * amount
