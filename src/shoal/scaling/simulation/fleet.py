"""The simulated nodes: their free resources and what runs on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Resources, Strategy
from shoal.scaling.inputs import Market, NodeView
from shoal.scaling.instance_selection import scarce_bits
from shoal.scaling.resource_vectors import UNIT, Item, LabelClass, ResourceSpace, Vector, copies

# One mapping for all launching nodes, so that the planner groups them.
_UNKNOWN: Resources = {}


@dataclass(eq=False)
class SimulatedNode:
    """One node from launch to termination. `workers` are the worker processes started on it."""

    id: str
    node_type: SimulatedNodeType
    requested_at: float
    price: float
    phase: Phase = Phase.REQUESTED
    is_head: bool = False
    market: Market = "on-demand"
    zone: str = ""
    throttled: bool = True
    free: Vector = ()
    ready_at: float = 0.0
    idle_since: float = 0.0
    busy_s: float = 0.0
    busy_since: float = 0.0
    workers: int = 0
    running: dict[int, RunningWork] = field(default_factory=dict)
    view: NodeView | None = None


@dataclass(frozen=True)
class RunningWork:
    """Copies of an item that run on a node, and the queue entry they came from."""

    item: Item
    copies: int
    origin: object


@dataclass(frozen=True)
class SimulatedNodeType:
    """What all nodes of a type have in common."""

    name: str
    total: Resources
    labels: Mapping[str, str]
    capacity: Vector
    label_class: LabelClass
    scarce: int
    idle_timeout_s: float


class Fleet:
    """All ready nodes, indexed by type and free resources."""

    def __init__(self, space: ResourceSpace) -> None:
        self.space = space
        self._by_free: dict[tuple[str, Vector], dict[SimulatedNode, None]] = {}
        self._node_types: dict[str, SimulatedNodeType] = {}
        self.idle: dict[SimulatedNode, None] = {}
        # One mapping for all nodes with equal free resources, so that the planner groups them.
        self._available_by_free: dict[tuple[str, Vector], Resources] = {}

    def node_type(
        self, name: str, total: Resources, labels: Mapping[str, str], idle_timeout_s: float
    ) -> SimulatedNodeType:
        """The node type of this name, made on first use."""
        if name not in self._node_types:
            space = self.space
            self._node_types[name] = SimulatedNodeType(
                name,
                dict(total),
                dict(labels),
                space.vector(total),
                space.label_class(labels),
                scarce_bits(space, total),
                idle_timeout_s,
            )
        return self._node_types[name]

    def add(self, node: SimulatedNode, now: float) -> None:
        """An instance has become a ready node."""
        node.phase, node.ready_at, node.idle_since = Phase.READY, now, now
        node.free = node.node_type.capacity
        self.idle[node] = None
        self._index(node)

    def remove(self, node: SimulatedNode) -> None:
        """A node takes no more work."""
        self.idle.pop(node, None)
        self._unindex(node)

    def _unindex(self, node: SimulatedNode) -> None:
        del self._by_free[node.node_type.name, node.free][node]

    def _index(self, node: SimulatedNode) -> None:
        self._by_free.setdefault((node.node_type.name, node.free), {})[node] = None
        node.view = None

    def start(
        self, node: SimulatedNode, run: int, item: Item, n: int, origin: object, now: float
    ) -> None:
        """Start work on a node."""
        if not node.running:
            node.busy_since = now
            self.idle.pop(node, None)
        node.running[run] = RunningWork(item, n, origin)
        self._change(node, item, -n)

    def finish(self, node: SimulatedNode, run: int, now: float) -> RunningWork:
        """Remove finished work from a node."""
        work = node.running.pop(run)
        if not node.running:
            node.idle_since = now
            self.idle[node] = None
            node.busy_s += now - node.busy_since
        if node.phase is Phase.READY:
            self._change(node, work.item, work.copies)
        return work

    def _change(self, node: SimulatedNode, item: Item, n: int) -> None:
        self._unindex(node)
        free = list(node.free)
        for axis, amount in item.nonzero:
            free[axis] += amount * n
        node.free = tuple(free)
        self._index(node)

    def start_workers(self, node: SimulatedNode, copies: int) -> int:
        """Give so many tasks, which are about to start, worker processes: idle ones first. Returns
        how many had to be started."""
        busy = sum(work.copies for work in node.running.values())
        started = max(0, busy + copies - node.workers)
        node.workers += started
        return started

    def copies_that_fit(self, node: SimulatedNode, item: Item, limit: int) -> int:
        """How many copies fit on a node now."""
        if not self.space.matches(item.selector, node.node_type.label_class):
            return 0
        return min(limit, copies(node.free, item))

    def candidates(self, item: Item) -> Iterator[SimulatedNode]:
        """Nodes that the item fits on: those without scarce resources that it does not need first,
        fuller ones first."""
        groups = [
            (name, free)
            for (name, free), nodes in self._by_free.items()
            if nodes
            and all(free[axis] >= amount for axis, amount in item.nonzero)
            and self.space.matches(item.selector, self._node_types[name].label_class)
        ]
        unneeded = ~item.scarce
        groups.sort(
            key=lambda group: (
                (self._node_types[group[0]].scarce & unneeded).bit_count(),
                sum(f * w for f, w in zip(group[1], self.space.weight, strict=True)),
                group,
            )
        )
        for group in groups:
            yield from list(self._by_free[group])

    def nodes_for_gang(
        self, items: Sequence[Item], strategy: Strategy
    ) -> list[SimulatedNode] | None:
        """A node for each of a gang's bundles, or None if some do not fit."""
        chosen: list[SimulatedNode] = []
        free_after: dict[SimulatedNode, Vector] = {}
        for item in items:
            node = self._node_for_bundle(item, strategy, chosen, free_after)
            if node is None:
                return None
            free = free_after.get(node, node.free)
            free_after[node] = tuple(f - n for f, n in zip(free, item.amounts, strict=True))
            chosen.append(node)
        return chosen

    def _node_for_bundle(
        self,
        item: Item,
        strategy: Strategy,
        chosen: Sequence[SimulatedNode],
        free_after: Mapping[SimulatedNode, Vector],
    ) -> SimulatedNode | None:
        reusable = [
            node for node in dict.fromkeys(chosen) if self._still_fits(node, item, free_after)
        ]
        unused = (node for node in self.candidates(item) if node not in free_after)
        if strategy is Strategy.STRICT_SPREAD:
            return next(unused, None)
        if strategy is Strategy.SPREAD:
            return next(unused, None) or (reusable[0] if reusable else None)
        return reusable[0] if reusable else next(unused, None)

    def _still_fits(
        self, node: SimulatedNode, item: Item, free_after: Mapping[SimulatedNode, Vector]
    ) -> bool:
        matches = self.space.matches(item.selector, node.node_type.label_class)
        return matches and copies(free_after[node], item) > 0

    def view(self, node: SimulatedNode, now: float) -> NodeView:
        """The node as the planner sees it. Only idle nodes change with time alone."""
        view = node.view
        if view is None or view.phase is not node.phase or node.phase is Phase.READY:
            idle = now - node.idle_since if not node.running else 0.0
            ready = node.phase is Phase.READY
            view = node.view = NodeView(
                node.id,
                node.node_type.name,
                node.phase,
                node.is_head,
                node.node_type.total if ready else _UNKNOWN,
                self._available(node) if ready else _UNKNOWN,
                node.node_type.labels,
                idle if ready else 0.0,
                node.market,
                node.zone,
                node.price,
                throttled=node.throttled,
            )
        return view

    def _available(self, node: SimulatedNode) -> Resources:
        key = (node.node_type.name, node.free)
        if key not in self._available_by_free:
            free = {n: f / UNIT for n, f in zip(self.space.names, node.free, strict=True)}
            total = node.node_type.total
            self._available_by_free[key] = {
                name: free.get(name, amount) for name, amount in total.items()
            }
        return self._available_by_free[key]
