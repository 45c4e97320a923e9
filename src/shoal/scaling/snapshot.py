"""The cluster as it stands, counted once: who is there, who is on the way, how much room is
left, and how many more there may be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Resources
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.inputs import COUNTED, ON_THE_WAY, NodeView
from shoal.scaling.instance_selection import special_of
from shoal.scaling.offerings import Offerings, guessed_price
from shoal.scaling.resource_vectors import ResourceSpace, Vector
from shoal.spec.cluster_spec import ClusterSpec

# What is worth something for its price must have one.
_NEXT_TO_NOTHING = 1e-9
SERVING = ON_THE_WAY | {Phase.READY}
_STAGE = {phase: number for number, phase in enumerate(Phase)}


class ClusterSnapshot:
    """The nodes sorted by what can be done with them. Those that are `leaving` hold no work but
    count against the limits, like those that are draining."""

    def __init__(
        self,
        spec: ClusterSpec,
        shop: Offerings,
        nodes: Sequence[NodeView],
        leaving: Set[str] = frozenset(),
    ) -> None:
        self.spec = spec
        self._shop = shop
        going = [n for n in nodes if n.id in leaving] if leaving else []
        self._leaving_by_type = Counter(n.node_type for n in going)
        self._leaving = len(going)
        nodes = [n for n in nodes if n.id not in leaving] if leaving else list(nodes)
        self._nodes = nodes
        self.groups = _grouped(nodes)
        serving = [(n, k) for n, k in self.groups if n.phase in SERVING]
        self.serving = serving
        self.ready_count = sum(k for n, k in serving if n.phase is Phase.READY)
        self.throttled_count = sum(k for n, k in serving if n.phase in ON_THE_WAY and n.throttled)
        self.is_growing = any(n.phase in ON_THE_WAY for n, _ in serving)
        # All workers that count against the limits, and those of them that hold work.
        self.by_type: Counter[str] = Counter()
        self.serving_by_type: Counter[str] = Counter()
        for node, count in self.groups:
            if not node.is_head and node.phase in COUNTED:
                self.by_type[node.node_type] += count
                if node.phase in SERVING:
                    self.serving_by_type[node.node_type] += count

    @property
    def worker_count(self) -> int:
        """How many workers count against the cluster's limit."""
        return sum(self.by_type.values()) + self._leaving

    def workers(self, node_type: str | None = None) -> list[NodeView]:
        """The workers that count, of one type or all, by name."""
        return sorted(
            (
                n
                for n in self._nodes
                if not n.is_head
                and n.phase in COUNTED
                and (node_type is None or n.node_type == node_type)
            ),
            key=_by_name,
        )

    def could_go(self) -> list[NodeView]:
        """The workers that are on their way or idle, by name."""
        alike = {
            node.likeness
            for node, _ in self.serving
            if not node.is_head and (node.idle_s > 0 or node.phase is not Phase.READY)
        }
        found = [n for n in self._nodes if n.likeness in alike] if alike else []
        return sorted(found, key=_by_name)

    def limits(self) -> dict[str, int]:
        """How many more of each type its own maximum allows."""
        return {
            name: max(0, t.max_workers - self.by_type[name] - self._leaving_by_type[name])
            for name, t in self.spec.node_types.items()
        }

    def slots(self) -> int:
        """How many more workers the cluster's maximum allows."""
        return max(0, self.spec.scaling.max_workers - self.worker_count)

    def total_of(self, node: NodeView) -> Resources:
        """What a node has in all: its own account, or its type's promise."""
        return node.total or self._shop.resources.get(node.node_type, {})

    def free_of(self, node: NodeView) -> Resources:
        """What is free on a node; all of it while it is on its way."""
        if node.phase is Phase.READY and node.total:
            return node.available
        return self.total_of(node)

    def labels_of(self, node: NodeView) -> Mapping[str, str]:
        """A node's labels: its own once it has any, else those its offer promises."""
        return node.labels or self._shop.labels(node.node_type, node.market, node.zone)

    def price_of(self, node: NodeView) -> float:
        """What a node costs an hour: as known for itself, else for its type, else a guess."""
        if node.price_per_hour is not None:
            return node.price_per_hour
        price = self._shop.price.get(node.node_type)
        return guessed_price(self.total_of(node)) if price is None else price

    def workers_price(self, without: Set[str] = frozenset()) -> float:
        """What all workers cost an hour, as far as prices are known, without some of them."""
        groups = self.groups
        if without:
            groups = _grouped([n for n in self._nodes if n.id not in without])
        return math.fsum(
            count * self.price_of(node)
            for node, count in groups
            if not node.is_head and node.phase in COUNTED and self.is_priced(node)
        )

    def first_to_go(self, node: NodeView) -> tuple[object, ...]:
        """Sorts those that have come least far first, then the dearest, then the longest idle."""
        return (_STAGE[node.phase], -self.price_of(node), -node.idle_s, node.id)

    def is_priced(self, node: NodeView) -> bool:
        """Whether the price of a node is known rather than guessed."""
        return node.price_per_hour is not None or self._shop.is_priced(node.node_type)

    def room(
        self, frame: ResourceSpace, *, whole: bool = False, without: Set[str] = frozenset()
    ) -> FreeCapacity:
        """The free room on all serving nodes, or, if `whole`, all that they have in all."""
        room = FreeCapacity(frame)
        groups = self.serving
        if without:
            staying = [n for n in self._nodes if n.phase in SERVING and n.id not in without]
            groups = _grouped(staying)
        # Nodes of a type nearly always have the same totals: encode those once.
        known: dict[str, tuple[Resources, Vector, int]] = {}
        for node, count in groups:
            total = self.total_of(node)
            type_ = known.get(node.node_type)
            if type_ is None or type_[0] != total:
                type_ = (total, frame.room(total), special_of(frame, total))
                known[node.node_type] = type_
            _, capacity, special = type_
            free = capacity if whole else frame.room(self.free_of(node))
            labels = frame.label_class(self.labels_of(node))
            price = max(self.price_of(node), _NEXT_TO_NOTHING)
            room.add(free, labels, special, price, free == capacity, count)
        return room


def _grouped(nodes: Sequence[NodeView]) -> list[tuple[NodeView, int]]:
    """One of each kind of node, and how many there are of it."""
    counts = Counter([n.likeness for n in nodes])
    if len(counts) == len(nodes):
        return [(n, 1) for n in nodes]
    examples = {n.likeness: n for n in nodes}
    return [(examples[key], count) for key, count in counts.items()]


_by_name = attrgetter("id")
