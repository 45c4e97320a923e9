"""The cluster at the start of a planning pass: node counts, free capacity, remaining limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Resources
from shoal.scaling.free_capacity import FreeCapacity
from shoal.scaling.inputs import COUNTED_PHASES, LAUNCHING_PHASES, NodeView
from shoal.scaling.instance_selection import scarce_bits
from shoal.scaling.offerings import Offerings, estimated_price
from shoal.scaling.resource_vectors import ResourceSpace, Vector
from shoal.spec.cluster_spec import ClusterSpec

# Packing divides by the price.
_MIN_PRICE = 1e-9
SERVING_PHASES = LAUNCHING_PHASES | {Phase.READY}
_PHASE_ORDER = {phase: number for number, phase in enumerate(Phase)}


class ClusterSnapshot:
    """Nodes grouped by state. `serving` are ready and launching nodes, as (example, count) groups.
    Nodes in `leaving` hold no work but count against the limits, like draining ones.
    `throttled_count` are launching nodes that count against `upscaling_speed`."""

    def __init__(
        self,
        spec: ClusterSpec,
        offerings: Offerings,
        nodes: Sequence[NodeView],
        leaving: Set[str] = frozenset(),
    ) -> None:
        self.spec = spec
        self._offerings = offerings
        leaving_nodes = [n for n in nodes if n.id in leaving] if leaving else []
        self._leaving_by_type = Counter(n.node_type for n in leaving_nodes)
        self._leaving = len(leaving_nodes)
        nodes = [n for n in nodes if n.id not in leaving] if leaving else list(nodes)
        self._nodes = nodes
        self.groups = _grouped(nodes)
        serving = [(n, k) for n, k in self.groups if n.phase in SERVING_PHASES]
        self.serving = serving
        self.ready_count = sum(k for n, k in serving if n.phase is Phase.READY)
        self.throttled_count = sum(
            k for n, k in serving if n.phase in LAUNCHING_PHASES and n.throttled
        )
        self.launching_count = sum(k for n, k in serving if n.phase in LAUNCHING_PHASES)
        # Workers that count against the limits, and those of them that hold or will hold work.
        self.by_type: Counter[str] = Counter()
        self.serving_by_type: Counter[str] = Counter()
        self.unreachable_by_type: Counter[str] = Counter()  # of the serving ones
        for node, count in self.groups:
            if not node.is_head and node.phase in COUNTED_PHASES:
                self.by_type[node.node_type] += count
                if node.phase in SERVING_PHASES:
                    self.serving_by_type[node.node_type] += count
                    self.unreachable_by_type[node.node_type] += count * node.unreachable

    @property
    def worker_count(self) -> int:
        """How many workers count against the cluster's `max_workers`."""
        return sum(self.by_type.values()) + self._leaving

    def workers(self, node_type: str | None = None) -> list[NodeView]:
        """The workers that count against limits, of one type or of all, sorted by id."""
        return sorted(
            (
                n
                for n in self._nodes
                if not n.is_head
                and n.phase in COUNTED_PHASES
                and (node_type is None or n.node_type == node_type)
            ),
            key=_by_id,
        )

    def idle_or_launching(self) -> list[NodeView]:
        """The workers that are idle or still launching, sorted by id."""
        group_keys = {
            node.group_key
            for node, _ in self.serving
            if not node.is_head and (node.idle_s > 0 or node.phase is not Phase.READY)
        }
        nodes = [n for n in self._nodes if n.group_key in group_keys] if group_keys else []
        return sorted(nodes, key=_by_id)

    def remaining_by_type(self) -> dict[str, int]:
        """How many more workers of each type its `max_workers` allows."""
        return {
            name: max(0, t.max_workers - self.by_type[name] - self._leaving_by_type[name])
            for name, t in self.spec.node_types.items()
        }

    def remaining_total(self) -> int:
        """How many more workers the cluster's `max_workers` allows."""
        return max(0, self.spec.scaling.max_workers - self.worker_count)

    def total_of(self, node: NodeView) -> Resources:
        """The total resources of a node: as Ray reports, else as its type has."""
        return node.total or self._offerings.resources.get(node.node_type, {})

    def free_of(self, node: NodeView) -> Resources:
        """The free resources of a node; all of them while it is launching."""
        if node.phase is Phase.READY and node.total:
            return node.available
        return self.total_of(node)

    def labels_of(self, node: NodeView) -> Mapping[str, str]:
        """The labels of a node: as Ray reports, else as its offering has."""
        return node.labels or self._offerings.labels(node.node_type, node.market, node.zone)

    def price_of(self, node: NodeView) -> float:
        """The price of a node per hour: its own, else its type's, else an estimate."""
        if node.price_per_hour is not None:
            return node.price_per_hour
        price = self._offerings.price.get(node.node_type)
        return estimated_price(self.total_of(node)) if price is None else price

    def workers_price(self, without: Set[str] = frozenset()) -> float:
        """The known price per hour of all workers except those in `without`."""
        groups = self.groups
        if without:
            groups = _grouped([n for n in self._nodes if n.id not in without])
        return math.fsum(
            count * self.price_of(node)
            for node, count in groups
            if not node.is_head and node.phase in COUNTED_PHASES and self.is_priced(node)
        )

    def removal_order(self, node: NodeView) -> tuple[object, ...]:
        """Sort key: earliest phase first, then most expensive, then longest idle."""
        return (_PHASE_ORDER[node.phase], -self.price_of(node), -node.idle_s, node.id)

    def is_priced(self, node: NodeView) -> bool:
        """Whether the price of a node is known rather than estimated."""
        return node.price_per_hour is not None or self._offerings.is_priced(node.node_type)

    def free_capacity(
        self, space: ResourceSpace, *, ignore_usage: bool = False, without: Set[str] = frozenset()
    ) -> FreeCapacity:
        """The free capacity of all serving nodes. With `ignore_usage`, their total capacity."""
        free_capacity = FreeCapacity(space)
        groups = self.serving
        if without:
            staying = [n for n in self._nodes if n.phase in SERVING_PHASES and n.id not in without]
            groups = _grouped(staying)
        # Nodes of a type nearly always have equal totals: encode them once.
        encoded_types: dict[str, tuple[Resources, Vector, int]] = {}
        for node, count in groups:
            total = self.total_of(node)
            encoded = encoded_types.get(node.node_type)
            if encoded is None or encoded[0] != total:
                encoded = (total, space.vector(total), scarce_bits(space, total))
                encoded_types[node.node_type] = encoded
            _, capacity, scarce = encoded
            free = capacity if ignore_usage else space.vector(self.free_of(node))
            labels = space.label_class(self.labels_of(node))
            price = max(self.price_of(node), _MIN_PRICE)
            free_capacity.add(free, labels, scarce, price, free == capacity, count)
        return free_capacity


def _grouped(nodes: Sequence[NodeView]) -> list[tuple[NodeView, int]]:
    """One example of each group of equal nodes, with the size of the group."""
    counts = Counter([n.group_key for n in nodes])
    if len(counts) == len(nodes):
        return [(n, 1) for n in nodes]
    examples = {n.group_key: n for n in nodes}
    return [(examples[key], count) for key, count in counts.items()]


_by_id = attrgetter("id")
