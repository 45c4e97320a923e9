"""Free capacity as rows of equal nodes, and best-fit-decreasing packing of items into them.

Equal nodes share a row and items are placed k copies at a time, so the cost depends on the number
of distinct nodes and shapes, not on the number of nodes and tasks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from shoal.scaling.greedy_packing import BinType
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
        # The changes of an attempt that may have to be undone, as rows with added nodes.
        self._changes: list[tuple[Row, int]] | None = None
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
            row = bucket[key] = Row(free, labels, scarce, price, is_empty, count, slack)
        if self._changes is not None and row is not None:
            self._changes.append((row, count))

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

    def used_nodes(self) -> FreeCapacity:
        """A copy of the nodes in use only."""
        return FreeCapacity(self.space, [row for row in self._iter_rows() if not row.is_empty])

    def joined(self, other: FreeCapacity) -> FreeCapacity:
        """The nodes of both."""
        return FreeCapacity(self.space, [*self._iter_rows(), *other._iter_rows()])

    def _iter_rows(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(bucket.values() for bucket in self._buckets.values())

    def unplaced_on_used_nodes(self, items: Sequence[Item]) -> tuple[int, ...]:
        """How many of each item do not fit on the nodes in use. Places nothing."""
        key = tuple(items)
        if key not in self._unplaced_on_used_nodes:
            self._unplaced_on_used_nodes[key] = tuple(self.used_nodes().pack(items))
        return self._unplaced_on_used_nodes[key]

    @property
    def rows(self) -> list[Row]:
        """All rows, in an order that depends only on their content."""
        return sorted(self._iter_rows(), key=lambda row: (row.slack, row.key))

    def pack(self, items: Iterable[Item], *, smallest_first: bool = False) -> list[int]:
        """Place items, hardest first, each where the least capacity is left over (best fit).
        Returns how many of each item do not fit, in the order given. With `smallest_first`, as many
        as possible are placed instead of the hardest."""
        items = list(items)
        left = [item.count for item in items]
        order = sorted(range(len(items)), key=lambda i: items[i].hardness)
        if smallest_first:
            order.sort(key=lambda i: (self.space.share(items[i]), self.space.size(items[i])))
        for index in order:
            left[index] = self._place(items[index])
        return left

    def try_pack(self, items: Iterable[Item]) -> bool:
        """Place all of the items, or none if one does not fit."""
        changes: list[tuple[Row, int]] = []
        self._changes = changes
        all_fit = not any(self.pack(items))
        self._changes = None
        if not all_fit:
            for row, added in reversed(changes):
                self._change_count(row, -added)
        return all_fit

    def _place(self, item: Item) -> int:
        """Place the copies of one item. Returns how many do not fit."""
        left = item.count
        if not left:
            return 0
        for row in self.candidates(item):
            each = left
            for axis, amount in item.nonzero:
                fit = row.free[axis] // amount
                if fit < each:
                    each = fit
            full = min(row.count, left // each)
            self.allocate(row, item, each, full)
            left -= full * each
            if not left:
                return 0
            if left < each and row.count:
                self.allocate(row, item, left, 1)
                return 0
        return left

    def candidates(self, item: Item) -> list[Row]:
        """The rows whose nodes can hold the item, best first."""
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
        if item.selector and self.space.has_alternatives(item.selector):
            preference = self.space.preference
            candidates.sort(key=lambda row: preference(item.selector, row.labels) or 0)
        return candidates

    def empty_row(self, bin_type: BinType) -> Row | None:
        """The row of empty nodes of this type, if there are any."""
        bucket = self._buckets.get((bin_type.scarce, self.space.size_class(bin_type.capacity)), {})
        return bucket.get(
            (bin_type.capacity, bin_type.labels, bin_type.scarce, bin_type.price, True)
        )

    def allocate(self, row: Row, item: Item, each: int, nodes: int) -> None:
        """Place this many copies of the item on each of this many nodes of the row."""
        if nodes:
            self.fill(row, ((item, each),), nodes)

    def fill(self, row: Row, pattern: Iterable[tuple[Item, int]], nodes: int) -> None:
        """Place this many copies of several items on each of this many nodes of the row."""
        free = list(row.free)
        for item, copies in pattern:
            for axis, amount in item.nonzero:
                free[axis] -= amount * copies
        self._remove(row, nodes)
        self._add_with_free(row, tuple(free), nodes, False)

    def _add_with_free(self, row: Row, free: Vector, nodes: int, is_empty: bool) -> None:
        self.add(free, row.labels, row.scarce, row.price, is_empty, nodes)

    def _remove(self, row: Row, nodes: int) -> None:
        if self._changes is not None:
            self._changes.append((row, -nodes))
        self._change_count(row, -nodes)

    def _change_count(self, row: Row, added: int) -> None:
        self._unplaced_on_used_nodes = {}
        bucket = self._buckets.setdefault((row.scarce, self.space.size_class(row.free)), {})
        current = bucket.setdefault(row.key, row)
        current.count += added
        if not current.count:
            del bucket[row.key]
