"""Rows of equal nodes, and best-fit packing of items into them, k copies at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

RowKey = tuple[Vector, LabelClass, int, float, bool]


class Row:
    """`count` nodes with the same free room, labels, special resources and price. `pristine`
    ones are whole: nothing runs or is planned there yet."""

    __slots__ = ("count", "free", "key", "labels", "price", "pristine", "slack", "special")

    def __init__(
        self,
        free: Vector,
        labels: LabelClass,
        special: int,
        price: float,
        pristine: bool,
        count: int,
        slack: float,
    ) -> None:
        self.free = free
        self.labels = labels
        self.special = special
        self.price = price
        self.pristine = pristine
        self.count = count
        self.slack = slack
        self.key: RowKey = (free, labels, special, price, pristine)

    def copy(self) -> Row:
        """A row of its own with the same nodes."""
        return Row(
            self.free, self.labels, self.special, self.price, self.pristine, self.count, self.slack
        )


class FreeCapacity:
    """All the room there is, as rows. Packing into it takes room away."""

    def __init__(self, frame: ResourceSpace, rows: Iterable[Row] = ()) -> None:
        self.frame = frame
        # Rows by their scarce resources and the size of their room on the main axis, so that a
        # shape looks only at rows that may hold it.
        self._shelves: dict[tuple[int, int], dict[RowKey, Row]] = {}
        # What used nodes leave of some items. Whole nodes that are added do not change it, and
        # that is what happens between one question and the next.
        self._left_by_used: dict[tuple[Item, ...], tuple[int, ...]] = {}
        for row in rows:
            self._put(row, row.free, row.count, row.pristine)

    def add(
        self,
        free: Vector,
        labels: LabelClass,
        special: int,
        price: float,
        pristine: bool,
        count: int,
    ) -> None:
        """Count in some more nodes."""
        if self.frame.is_useless(free):
            return
        if not pristine:
            self._left_by_used = {}
        key = (free, labels, special, price, pristine)
        shelf = self._shelves.setdefault((special, self.frame.size(free)), {})
        row = shelf.get(key)
        if row is not None:
            row.count += count
        elif count:
            slack = sum([f * w for f, w in zip(free, self.frame.weight, strict=True)])
            shelf[key] = Row(free, labels, special, price, pristine, count, slack)

    def copy(self) -> FreeCapacity:
        """The same room, to try something in."""
        other = FreeCapacity(self.frame)
        other._shelves = {
            place: {key: row.copy() for key, row in shelf.items()}
            for place, shelf in self._shelves.items()
        }
        other._left_by_used = self._left_by_used
        return other

    def whole(self) -> FreeCapacity:
        """The nodes that nothing runs on yet, to try something in."""
        return FreeCapacity(self.frame, [row for row in self._all() if row.pristine])

    def _all(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(shelf.values() for shelf in self._shelves.values())

    def left_by_used(self, items: Sequence[Item]) -> tuple[int, ...]:
        """How many of each item the nodes in use cannot take; nothing is placed."""
        key = tuple(items)
        if key not in self._left_by_used:
            used = FreeCapacity(self.frame, [row for row in self._all() if not row.pristine])
            self._left_by_used[key] = tuple(used.pack(items))
        return self._left_by_used[key]

    @property
    def rows(self) -> list[Row]:
        """All rows, in an order that depends on nothing but their content."""
        return sorted(self._all(), key=lambda row: (row.slack, row.key))

    def pack(self, items: Iterable[Item]) -> list[int]:
        """Place items, hardest first, each where the least room is left over; how many of each
        found no place, in the order given."""
        items = list(items)
        left = [item.count for item in items]
        for index in sorted(range(len(items)), key=lambda i: items[i].hardness):
            left[index] = self._place(items[index])
        return left

    def _place(self, item: Item) -> int:
        """Place copies of one item; how many did not fit."""
        left = item.count
        if not left:
            return 0
        for row in self._candidates(item):
            each = left
            for axis, amount in item.wants:
                fit = row.free[axis] // amount
                if fit < each:
                    each = fit
            full = min(row.count, left // each)
            self._take(row, item, each, full)
            left -= full * each
            if not left:
                return 0
            if left < each and row.count:
                self._take(row, item, left, 1)
                return 0
        return left

    def _candidates(self, item: Item) -> list[Row]:
        # The loop that matters: one pass over the rows for every shape.
        size = self.frame.size(item.need)
        fits = [
            row
            for (special, room), shelf in self._shelves.items()
            if room >= size and not item.special & ~special
            for row in shelf.values()
        ]
        for axis, amount in item.wants:
            fits = [row for row in fits if row.free[axis] >= amount]
        if item.selector:
            admits = self.frame.admits
            fits = [row for row in fits if admits(item.selector, row.labels)]
        unwanted = ~item.special
        # Nodes with scarce resources that this item does not want come last, fuller nodes first.
        fits.sort(key=lambda row: ((row.special & unwanted).bit_count(), row.slack, row.key))
        return fits

    def _take(self, row: Row, item: Item, each: int, nodes: int) -> None:
        if not nodes:
            return
        self._remove(row, nodes)
        free = list(row.free)
        for axis, amount in item.wants:
            free[axis] -= amount * each
        self._put(row, tuple(free), nodes, False)

    def _put(self, like: Row, free: Vector, nodes: int, pristine: bool) -> None:
        self.add(free, like.labels, like.special, like.price, pristine, nodes)

    def place_apart(self, items: Sequence[Item]) -> list[int]:
        """Place one copy of each item, every one on a node of its own, all or none: the indices
        of those that found no node, in which case nothing has been placed."""
        taken: list[tuple[Row, Item]] = []
        missing = []
        for index in sorted(range(len(items)), key=lambda i: items[i].hardness):
            fits = self._candidates(items[index])
            if fits:
                taken.append((fits[0], items[index]))
                self._remove(fits[0], 1)
            else:
                missing.append(index)
        for row, item in taken:
            if missing:
                self._put(row, row.free, 1, row.pristine)
            else:
                free = tuple([f - n for f, n in zip(row.free, item.need, strict=True)])
                self._put(row, free, 1, False)
        return missing

    def _remove(self, row: Row, nodes: int) -> None:
        self._left_by_used = {}
        row.count -= nodes
        if not row.count:
            del self._shelves[row.special, self.frame.size(row.free)][row.key]
