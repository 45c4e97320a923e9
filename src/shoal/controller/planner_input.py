"""Puts the question to the planner: what is known of the nodes in its terms, and what it must
remember from one question to the next."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from shoal.controller.journal import Journal
from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, State
from shoal.ray_runtime.gcs_client import Reading
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import History, NodeView, Plan, plan
from shoal.scaling.demand import Resources
from shoal.scaling.inputs import Market, Offering
from shoal.scaling.offerings import node_type_resources
from shoal.spec.cluster_spec import ClusterSpec


class Sizing:
    """The planner with its history. `offers` is what the provider sells, as far as is known;
    `pinned` are the nodes, by Ray's ids, whose work must stay where it is, and None is all."""

    def __init__(self, journal: Journal, offers: Sequence[Offering]) -> None:
        self._journal = journal
        self._history = History(initial_workers_reached=True)
        self.offers = offers
        self.pinned: Collection[str] | None = None
        # What the nodes looked like last, and what that was made from.
        self._seen: dict[str, tuple[Node, RayNode, bool, NodeView]] = {}

    def plan(self, spec: ClusterSpec, reading: Reading, now: float) -> Plan:
        """What should be done now."""
        memory = self._journal.memory
        failures = tuple(f.failure for f in memory.failures)
        history = replace(self._history, failures=failures, given_up=dict(memory.blocked))
        views = self._views(reading, now)
        decided = plan(spec, views, reading.demand, history, now, self.offers)
        self._history = decided.history
        return decided

    def sizes(self, spec: ClusterSpec) -> dict[str, Resources]:
        """What nodes of each type have, as far as is known."""
        return {
            name: node_type_resources(node_type, [o for o in self.offers if o.node_type == name])
            for name, node_type in spec.node_types.items()
        }

    def _views(self, reading: Reading, now: float) -> Iterator[NodeView]:
        before, self._seen = self._seen, {}
        for node in self._journal.memory.nodes.values():
            ray = reading.nodes.get(node.id)
            if ray is None:
                yield _view(node, ray, now, movable=False)
                continue
            movable = self.pinned is not None and ray.ray_id not in self.pinned
            last = before.get(node.id)
            # A node that is not idle looks the same as long as nothing about it has changed.
            if last and not ray.idle_s and last[:3] == (node, ray, movable):
                view = last[3]
            else:
                view = _view(node, ray, now, movable=movable)
            self._seen[node.id] = (node, ray, movable, view)
            yield view
        for intent in self._journal.memory.intents.values():
            for number in range(intent.count):
                yield NodeView(
                    id=f"{intent.token}/{number}",
                    node_type=intent.node_type,
                    phase=Phase.REQUESTED,
                    market=cast(Market, intent.market),
                    zone=intent.zone,
                    price_per_hour=intent.price_per_hour,
                    throttled=intent.throttled,
                )


def price_per_hour(nodes: Iterable[Node]) -> float:
    """What the machines that are there cost, the head included, as far as prices are known."""
    return math.fsum(n.price_per_hour or 0.0 for n in nodes if n.phase is not Phase.STOPPED)


def _view(node: Node, ray: RayNode | None, now: float, *, movable: bool) -> NodeView:
    phase = node.phase
    if phase is Phase.READY and ray is None:
        phase = Phase.STARTING  # it has started, and the GCS will show it in a moment
    return NodeView(
        id=node.id,
        node_type=node.node_type,
        phase=phase,
        is_head=node.role == "head",
        total=ray.total if ray else {},
        available=ray.available if ray else {},
        labels=ray.labels if ray else {},
        # Ray counts from its own start; before it was ready, nobody could have used the node.
        idle_s=min(ray.idle_s, now - node.since) if ray else 0.0,
        market=cast(Market, node.market),
        zone=node.zone,
        price_per_hour=node.price_per_hour,
        throttled=node.throttled,
        restartable=movable,
        interrupted=bool(node.notice),
    )


def within_reach(
    spec: ClusterSpec,
    worker_hosts: Collection[str] | None,
    instances: Mapping[str, Instance],
    nodes: Mapping[str, Node],
) -> ClusterSpec:
    """The spec with no more workers than there are usable hosts. `worker_hosts` are the ids of all
    hosts; None if instances are launched. A host that does not answer, or that is still being
    cleaned up, is not usable."""
    if worker_hosts is None:
        return spec
    taken = {i.id for i in instances.values() if i.state is State.UNREACHABLE}
    taken |= {n.id for n in nodes.values() if n.phase in (Phase.TERMINATING, Phase.FAILED)}
    most = sum(id not in taken for id in worker_hosts)
    types = {
        name: replace(t, max_workers=min(t.max_workers, most), min_workers=min(t.min_workers, most))
        for name, t in spec.node_types.items()
    }
    scaling = replace(spec.scaling, max_workers=min(spec.scaling.max_workers, most))
    return replace(spec, node_types=types, scaling=scaling)
