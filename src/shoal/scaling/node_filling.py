"""Fills nodes one after the other: next comes the node that the remaining work uses best.

A second opinion beside best fit, which places one kind of item after the other. Neither is always
better, and the planner keeps the better result.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.greedy_packing import BinType
from shoal.scaling.offerings import is_scarce
from shoal.scaling.placement import Unplaced, place
from shoal.scaling.resource_vectors import Item, LabelClass, ResourceSpace, Vector
from shoal.scaling.workload import Workload


class FillOrder(enum.Enum):
    """Which items a node takes first: those that are hardest to place, as in Ray, so that large
    ones are not left over; the smallest, so that few are left over; or the smallest of those that
    need scarce resources."""

    HARDEST = enum.auto()
    SMALLEST = enum.auto()
    SMALLEST_SCARCE = enum.auto()


class LaunchLimits(NamedTuple):
    """The types of instances that may be launched, and how many per group and in total."""

    bin_types: Sequence[BinType] = ()
    by_group: Sequence[int] = ()
    total: int = 0


class _Node(NamedTuple):
    free: Vector
    capacity: Vector
    labels: LabelClass
    scarce: int


_Score = tuple[bool, bool, int, float, float]
_NodePattern = list[tuple[int, int]]  # (item, copies on one node)
_Use = tuple[_NodePattern, tuple[float, _Score]]


class NodeFilling:
    """Nodes that are being filled. `launched` counts the instances added, by bin type."""

    def __init__(
        self,
        free_capacity: FreeCapacity,
        limits: LaunchLimits,
        order: FillOrder,
        *,
        launched: Counter[int] | None = None,
    ) -> None:
        self.space = free_capacity.space
        self._bin_types = limits.bin_types
        self._limits = list(limits.by_group)
        self._total_limit = limits.total
        self.order = order
        self._scarce_axes = [a for a, name in enumerate(self.space.names) if is_scarce(name)]
        self._nodes: Counter[_Node] = Counter()
        for row in free_capacity.rows:
            self._nodes[_Node(row.free, row.free, row.labels, row.scarce)] += row.count
        self.launched: Counter[int] = Counter()
        for index, n in (launched or {}).items():
            self._launch(index, n)
            self._nodes[_empty_node(limits.bin_types[index])] += n

    def add(self, items: Sequence[Item], *, spread: bool = False, whole: bool = False) -> list[int]:
        """Place items, and return how many of each do not fit. With `spread`, no two on one node;
        with `whole`, all or none."""
        nodes = self._nodes.copy()
        limits, total_limit = list(self._limits), self._total_limit
        launched = self.launched.copy()
        left = self._fill(items, spread)
        if whole and any(left):
            self._nodes, self._limits, self._total_limit = nodes, limits, total_limit
            self.launched = launched
        return left

    def _fill(self, items: Sequence[Item], spread: bool) -> list[int]:
        left = [item.count for item in items]
        order = sorted(range(len(items)), key=lambda i: self._order(items[i]))
        unvisited = self._nodes.copy()
        uses: dict[_Node, _Use] = {}
        while any(left) and (best := self._best(unvisited, items, order, left, spread, uses)):
            node, pattern = best
            n = min(unvisited[node], *(left[i] // copies for i, copies in pattern))
            _subtract(unvisited, node, n)
            _subtract(self._nodes, node, n)
            self._place(node, items, pattern, n, left)
        while any(left) and self._total_limit > 0:
            open_types = {
                _empty_node(b): index
                for index, b in reversed(list(enumerate(self._bin_types)))
                if self._limits[b.group] > 0
            }
            best = self._best(open_types, items, order, left, spread, uses)
            if best is None:
                break
            node, pattern = best
            group = self._bin_types[open_types[node]].group
            n = min(self._limits[group], self._total_limit, *(left[i] // c for i, c in pattern))
            self._launch(open_types[node], n)
            self._place(node, items, pattern, n, left)
        return left

    def _launch(self, index: int, n: int) -> None:
        self._limits[self._bin_types[index].group] -= n
        self._total_limit -= n
        self.launched[index] += n

    def _place(
        self,
        node: _Node,
        items: Sequence[Item],
        pattern: Sequence[tuple[int, int]],
        n: int,
        left: list[int],
    ) -> None:
        for i, copies in pattern:
            left[i] -= copies * n
        self._nodes[node._replace(free=_without(node.free, items, pattern))] += n

    def _order(self, item: Item) -> tuple[object, ...]:
        if self.order is FillOrder.HARDEST:
            sizes = [-n for n in item.amounts]
            return (item.selector == 0, -len(item.nonzero), sum(sizes), sizes)
        scarce = self.order is FillOrder.SMALLEST_SCARCE and item.scarce.bit_count()
        return (-scarce, self.space.share(item), self.space.size(item), item.hardness)

    def _best(
        self,
        nodes: Iterable[_Node],
        items: Sequence[Item],
        order: Sequence[int],
        left: Sequence[int],
        spread: bool,
        uses: dict[_Node, _Use],
    ) -> tuple[_Node, _NodePattern] | None:
        """The node that is used best, and what it gets. `uses` keeps what is known of each node: it
        changes only when there is too little left of an item."""
        best, best_score = None, None
        for node in nodes:
            use = uses.get(node)
            if use is None or any(left[i] < copies for i, copies in use[0]):
                pattern = _pattern(self.space, node, items, order, left, spread)
                scarcity = self._scarcity(node, items, pattern)
                use = uses[node] = (pattern, (scarcity, _score(node, items, pattern)))
            pattern, score = use
            if pattern and (best_score is None or score > best_score):
                best, best_score = (node, pattern), score
        return best

    def _scarcity(
        self, node: _Node, items: Sequence[Item], pattern: Sequence[tuple[int, int]]
    ) -> float:
        """How few scarce resources work that needs none of them would block on this node, for the
        order that spares them; 0 in the others."""
        if self.order is not FillOrder.SMALLEST_SCARCE or any(items[i].scarce for i, _ in pattern):
            return 0.0
        sizes = [n * w for n, w in zip(node.free, self.space.weight, strict=True)]
        scarce = sum(sizes[axis] for axis in self._scarce_axes)
        return -scarce / max(sum(sizes) - scarce, 1e-9)


def _pattern(
    space: ResourceSpace,
    node: _Node,
    items: Sequence[Item],
    order: Sequence[int],
    left: Sequence[int],
    spread: bool,
) -> _NodePattern:
    """How many copies of which items one node takes, first come first served."""
    free = list(node.free)
    pattern = []
    for i in order:
        copies = min(left[i], 1) if spread else left[i]
        if not copies or not space.matches(items[i].selector, node.labels):
            continue
        for axis, amount in items[i].nonzero:
            fit = free[axis] // amount
            if fit < copies:
                copies = fit
                if not copies:
                    break
        if copies:
            pattern.append((i, copies))
            if spread:
                break
            for axis, amount in items[i].nonzero:
                free[axis] -= amount * copies
    return pattern


def _score(node: _Node, items: Sequence[Item], pattern: Sequence[tuple[int, int]]) -> _Score:
    """Better used nodes have higher scores: first those whose labels are needed, then those whose
    scarce resources are, then by how many resources are used and how far."""
    free = _without(node.free, items, pattern)
    scarce, has_labels = 0, False
    axes: set[int] = set()
    for i, _ in pattern:
        scarce |= items[i].scarce
        has_labels |= items[i].selector != 0
        axes.update(axis for axis, _ in items[i].nonzero)
    used = [
        total * ((total - rest) / total) ** 3
        for total, rest in zip(node.capacity, free, strict=True)
        if total
    ]
    return (
        has_labels,
        not node.scarce & ~scarce,
        len(axes),
        min(used, default=0.0),
        sum(used) / max(1, len(used)),
    )


def _without(free: Vector, items: Sequence[Item], pattern: Sequence[tuple[int, int]]) -> Vector:
    rest = list(free)
    for i, copies in pattern:
        for axis, amount in items[i].nonzero:
            rest[axis] -= amount * copies
    return tuple(rest)


def _empty_node(bin_type: BinType) -> _Node:
    return _Node(bin_type.capacity, bin_type.capacity, bin_type.labels, bin_type.scarce)


def _subtract(counter: Counter[_Node], node: _Node, n: int) -> None:
    counter[node] -= n
    if not counter[node]:
        del counter[node]


@dataclass(frozen=True)
class _Gang:
    """`count` equal gangs. A STRICT_PACK gang is one item, whatever the number of its bundles."""

    items: Sequence[Item]
    bundles: int
    spread: bool
    is_strict: bool
    count: int


def fill_with_work(filling: NodeFilling, workload: Workload) -> Unplaced:
    """Place the work: gangs one by one, each whole or not at all, then tasks."""
    groups, packed = workload.gang_groups, workload.strict_pack_gangs
    gangs = [
        _Gang(g.bundles, sum(i.count for i in g.bundles), g.strict_spread, g.strict_spread, g.count)
        for g in groups
    ]
    gangs += [
        _Gang((filling.space.resized(g.item, 1),), g.bundles, False, True, g.item.count)
        for g in packed
    ]
    unplaced = [0] * len(gangs)
    for number in sorted(range(len(gangs)), key=lambda n: (_gang_order(filling, gangs[n]), n)):
        gang = gangs[number]
        for placed in range(gang.count):
            if any(filling.add(gang.items, spread=gang.spread, whole=True)):
                unplaced[number] = gang.count - placed
                break
    tasks = filling.add([task.item for task in workload.tasks])
    return Unplaced(tuple(unplaced[: len(groups)]), tuple(unplaced[len(groups) :]), tuple(tasks))


def _gang_order(filling: NodeFilling, gang: _Gang) -> tuple[float, ...]:
    """Strict gangs with many bundles first, as in Ray; or the smallest; or the smallest of those
    that fit on few nodes."""
    if filling.order is FillOrder.HARDEST:
        return (-gang.bundles * gang.is_strict, -gang.bundles)
    size = sum(item.count * filling.space.size(item) for item in gang.items)
    if filling.order is FillOrder.SMALLEST:
        return (size,)
    scarce = max(item.scarce.bit_count() for item in gang.items)
    return (all(item.selector == 0 for item in gang.items), -scarce, size)


def fewest_unplaced(free_capacity: FreeCapacity, workload: Workload) -> Unplaced:
    """What is left of the work if as many gangs, then as many tasks as possible are placed: the
    best of several placements."""
    best = place(
        free_capacity,
        workload.gang_groups,
        workload.strict_pack_gangs,
        workload.tasks,
        fewest_left=True,
    )
    used, empty = _empty_nodes_as_launches(free_capacity)
    for nodes, limits in ((free_capacity, LaunchLimits()), (used, empty)):
        for order in FillOrder:
            if not best:
                return best
            filling = NodeFilling(nodes, limits, order)
            other = fill_with_work(filling, workload)
            best = min(best, other, key=lambda u: (u.gangs, sum(u.tasks)))
    return best


def _empty_nodes_as_launches(free_capacity: FreeCapacity) -> tuple[FreeCapacity, LaunchLimits]:
    """The nodes in use, and the empty ones as if they could be launched: they are then filled as
    they were when they were selected."""
    empty = [row for row in free_capacity.rows if row.is_empty]
    bin_types = [
        BinType(row.free, row.labels, row.scarce, row.price, group)
        for group, row in enumerate(empty)
    ]
    counts = [row.count for row in empty]
    return free_capacity.used_nodes(), LaunchLimits(bin_types, counts, sum(counts))


def launches_by_filling(
    free: FreeCapacity,
    total: FreeCapacity,
    workload: Workload,
    limits: LaunchLimits,
    order: FillOrder,
) -> Counter[int]:
    """The instances launched if nodes are filled one after the other: for floors, then for the
    work. Returned by bin type."""
    for_floors = NodeFilling(total, limits, order)
    for_floors.add([floor.item for floor in workload.floors])
    for_work = NodeFilling(free, limits, order, launched=for_floors.launched)
    fill_with_work(for_work, workload)
    return for_work.launched
