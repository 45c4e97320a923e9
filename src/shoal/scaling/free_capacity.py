"""Free capacity as rows of equal nodes, and best-fit-decreasing packing of items into them.

Equal nodes share a row and items are placed k copies at a time, so the cost depends on the number
of distinct nodes and shapes, not on the number of nodes and tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector

RowKey = tuple[Vector, LabelClass, int, float, bool]


class Row:
    """`count` nodes with the same free resources, labels, scarce resources and price. Nothing runs
    or is planned on nodes with `is_empty`."""

    __slots__ = ("count", "free", "is_empty", "key", "labels", "price", "scarce", "slack")

    def __init__(
        self,
        free: Vector,
        labels: LabelClass,
        scarce: int,
        price: float,
        is_empty: bool,
        count: int,
        slack: float,
    ) -> None:
        self.free = free
        self.labels = labels
        self.scarce = scarce
        self.price = price
        self.is_empty = is_empty
        self.count = count
        self.slack = slack
        self.key: RowKey = (free, labels, scarce, price, is_empty)

    def copy(self) -> Row:
        """An independent row with the same nodes."""
        return Row(
            self.free, self.labels, self.scarce, self.price, self.is_empty, self.count, self.slack
        )


class FreeCapacity:
    """The free capacity of a set of nodes. Packing uses it up."""

    def __init__(self, space: ResourceSpace, rows: Iterable[Row] = ()) -> None:
        self.space = space
        # Rows by scarce resources and by size class on the main axis, so that an item is
        # compared only with rows that may hold it.
        self._buckets: dict[tuple[int, int], dict[RowKey, Row]] = {}
        # Cached results of `unplaced_on_used_nodes`. Adding empty nodes does not change them, and
        # between two calls usually nothing else happens.
        self._unplaced_on_used_nodes: dict[tuple[Item, ...], tuple[int, ...]] = {}
        for row in rows:
            self._add_with_free(row, row.free, row.count, row.is_empty)

    def add(
        self,
        free: Vector,
        labels: LabelClass,
        scarce: int,
        price: float,
        is_empty: bool,
        count: int,
    ) -> None:
        """Add `count` nodes."""
        if self.space.fits_nothing(free):
            return
        if not is_empty:
            self._unplaced_on_used_nodes = {}
        key = (free, labels, scarce, price, is_empty)
        bucket = self._buckets.setdefault((scarce, self.space.size_class(free)), {})
        row = bucket.get(key)
        if row is not None:
            row.count += count
        elif count:
            slack = sum([f * w for f, w in zip(free, self.space.weight, strict=True)])
            bucket[key] = Row(free, labels, scarce, price, is_empty, count, slack)

    def copy(self) -> FreeCapacity:
        """An independent copy, to try a placement in."""
        other = FreeCapacity(self.space)
        other._buckets = {
            bucket_key: {key: row.copy() for key, row in bucket.items()}
            for bucket_key, bucket in self._buckets.items()
        }
        other._unplaced_on_used_nodes = self._unplaced_on_used_nodes
        return other

    def empty_nodes(self) -> FreeCapacity:
        """A copy of the empty nodes only."""
        return FreeCapacity(self.space, [row for row in self._iter_rows() if row.is_empty])

    def _iter_rows(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(bucket.values() for bucket in self._buckets.values())

    def unplaced_on_used_nodes(self, items: Sequence[Item]) -> tuple[int, ...]:
        """How many of each item do not fit on the nodes in use. Places nothing."""
        key = tuple(items)
        if key not in self._unplaced_on_used_nodes:
            used = FreeCapacity(self.space, [row for row in self._iter_rows() if not row.is_empty])
            self._unplaced_on_used_nodes[key] = tuple(used.pack(items))
        return self._unplaced_on_used_nodes[key]

    @property
    def rows(self) -> list[Row]:
        """All rows, in an order that depends only on their content."""
        return sorted(self._iter_rows(), key=lambda row: (row.slack, row.key))

    def pack(self, items: Iterable[Item]) -> list[int]:
        """Place items, hardest first, each where the least capacity is left over (best fit).
        Returns how many of each item do not fit, in the order given."""
        items = list(items)
        left = [item.count for item in items]
        for index in sorted(range(len(items)), key=lambda i: items[i].hardness):
            left[index] = self._place(items[index])
        return left

    def _place(self, item: Item) -> int:
        """Place the copies of one item. Returns how many do not fit."""
        left = item.count
        if not left:
            return 0
        for row in self._candidates(item):
            each = left
            for axis, amount in item.nonzero:
                fit = row.free[axis] // amount
                if fit < each:
                    each = fit
            full = min(row.count, left // each)
            self._allocate(row, item, each, full)
            left -= full * each
            if not left:
                return 0
            if left < each and row.count:
                self._allocate(row, item, left, 1)
                return 0
        return left

    def _candidates(self, item: Item) -> list[Row]:
        # The planner's hottest loop: one pass over the rows per item.
        size = self.space.size_class(item.amounts)
        candidates = [
            row
            for (scarce, bucket_size), bucket in self._buckets.items()
            if bucket_size >= size and not item.scarce & ~scarce
            for row in bucket.values()
        ]
        for axis, amount in item.nonzero:
            candidates = [row for row in candidates if row.free[axis] >= amount]
        if item.selector:
            matches = self.space.matches
            candidates = [row for row in candidates if matches(item.selector, row.labels)]
        unneeded = ~item.scarce
        # Nodes with scarce resources that this item does not need come last, fuller nodes first.
        candidates.sort(key=lambda row: ((row.scarce & unneeded).bit_count(), row.slack, row.key))
        return candidates

    def _allocate(self, row: Row, item: Item, each: int, nodes: int) -> None:
        if not nodes:
            return
        self._remove(row, nodes)
        free = list(row.free)
        for axis, amount in item.nonzero:
            free[axis] -= amount * each
        self._add_with_free(row, tuple(free), nodes, False)

    def _add_with_free(self, row: Row, free: Vector, nodes: int, is_empty: bool) -> None:
        self.add(free, row.labels, row.scarce, row.price, is_empty, nodes)

    def place_on_distinct_nodes(self, items: Sequence[Item]) -> list[int]:
        """Place one copy of each item, each on a different node, all or none. Returns the indices
        of the items without a node; if there are any, nothing is placed."""
        taken: list[tuple[Row, Item]] = []
        missing = []
        for index in sorted(range(len(items)), key=lambda i: items[i].hardness):
            candidates = self._candidates(items[index])
            if candidates:
                taken.append((candidates[0], items[index]))
                self._remove(candidates[0], 1)
            else:
                missing.append(index)
        for row, item in taken:
            if missing:
                self._add_with_free(row, row.free, 1, row.is_empty)
            else:
                free = tuple([f - n for f, n in zip(row.free, item.amounts, strict=True)])
                self._add_with_free(row, free, 1, False)
        return missing

    def _remove(self, row: Row, nodes: int) -> None:
        self._unplaced_on_used_nodes = {}
        row.count -= nodes
        if not row.count:
            del self._buckets[row.scarce, self.space.size_class(row.free)][row.key]
