"""The planner's input: nodes in its terms, the provider's offerings, and the history that it needs
from one plan to the next. The decisions themselves are in `scaling`."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from shoal.controller.host_types import HostTypes, WorkerHost
from shoal.controller.journal import Journal
from shoal.controller.lifecycle import Node
from shoal.controller.node_manager import NodeManager
from shoal.controller.settled_demand import SettledDemand
from shoal.core.backoff import Backoff
from shoal.core.clock import Clock
from shoal.core.node_phase import Phase
from shoal.ray_runtime.gcs_client import GcsReading
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import History, NodeView, Plan, plan
from shoal.scaling.demand import Resources
from shoal.scaling.inputs import Market, Offering
from shoal.scaling.offerings import node_type_resources
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_OFFERINGS_SECONDS = 3600.0
_FIRST_BACKOFF_SECONDS = 10.0
_LONGEST_BACKOFF_SECONDS = 900.0

# What a view is made from, besides the time: the node, its Ray, its type for the planner, whether
# its work may be moved, whether it does not answer, and whether it is outdated.
_ViewKey = tuple[Node, RayNode | None, str, bool, bool, bool]


class ClusterPlanner:
    """Calls the planner.

    offerings:  what the provider offers, from the catalog until the provider has answered
    pinned:     nodes, by Ray id, whose work cannot move; None means all nodes
    outdated:   nodes, by instance id, whose launch settings have changed in the cluster file
    """

    def __init__(self, journal: Journal, offerings: Sequence[Offering]) -> None:
        self._journal = journal
        self._history = History(initial_workers_reached=True)
        self.offerings = offerings
        self.pinned: Collection[str] | None = None
        self.outdated: Collection[str] = ()
        self._settled_demand = SettledDemand()
        # The last view of each node, and what it was made from.
        self._views_cache: dict[str, tuple[_ViewKey, NodeView]] = {}
        # What Ray has reported of each host that was a node before.
        self._ray_resources: dict[str, Resources] = {}

    def plan(
        self,
        spec: ClusterSpec,
        reading: GcsReading,
        now: float,
        *,
        hosts: Mapping[str, WorkerHost] | None = None,
        unreachable: Collection[str] = (),
    ) -> Plan:
        """What should be launched, drained and cancelled now. `hosts` are all hosts that can become
        workers, None if instances are launched; `unreachable` are those that do not answer."""
        state = self._journal.state
        types = HostTypes(spec, self._with_ray_resources(hosts or {}, reading))
        failures = tuple(types.failure(f.failure) for f in state.failures)
        blocked = types.blocked(state.blocked)
        history = replace(self._history, failures=failures, blocked=blocked)
        views = list(self._views(reading, now, types, unreachable))
        if hosts is not None:
            spec = types.spec(state.nodes, unreachable)
        demand = self._settled_demand.of(reading, now)
        result = plan(spec, views, demand, history, now, self.offerings)
        self._history = result.history
        return replace(result, launches=tuple(map(types.real_launch, result.launches)))

    def reset(self, offerings: Sequence[Offering]) -> None:
        """Forget what a former config may have determined."""
        self.offerings = offerings
        self._ray_resources.clear()

    def node_resources(
        self, spec: ClusterSpec, hosts: Mapping[str, WorkerHost] | None
    ) -> dict[str, Resources]:
        """The resources of a node of each type, as far as they are known."""
        if hosts:
            spec = HostTypes(spec, hosts).spec({}, ())
        return {
            name: node_type_resources(node_type, [o for o in self.offerings if o.node_type == name])
            for name, node_type in spec.node_types.items()
        }

    def _with_ray_resources(
        self, hosts: Mapping[str, WorkerHost], reading: GcsReading
    ) -> dict[str, WorkerHost]:
        """The hosts with the resources that their Ray has now or had last: its start commands may
        change what it detects."""
        seen = self._ray_resources
        seen.update({id: n.total for id, n in reading.nodes.items() if id in hosts and n.total})
        return {id: replace(h, resources=seen.get(id, h.resources)) for id, h in hosts.items()}

    def _views(
        self, reading: GcsReading, now: float, types: HostTypes, unreachable: Collection[str]
    ) -> Iterator[NodeView]:
        before, self._views_cache = self._views_cache, {}
        for node in self._journal.state.nodes.values():
            ray = reading.nodes.get(node.id)
            is_unreachable = node.id in unreachable
            movable = (
                ray is not None
                and not is_unreachable
                and self.pinned is not None
                and ray.ray_id not in self.pinned
            )
            node_type = types.type_of(node.id, node.node_type)
            is_outdated = node.id in self.outdated and node.role == "worker"
            key = (node, ray, node_type, movable, is_unreachable, is_outdated)
            last = before.get(node.id)
            # The view of a busy node is the same as long as nothing about it has changed.
            if last and ray is not None and not ray.idle_s and last[0] == key:
                view = last[1]
            else:
                view = _view(*key, now=now)
            self._views_cache[node.id] = (key, view)
            yield view
        for intent in self._journal.state.intents.values():
            for number in range(intent.count):
                yield NodeView(
                    id=f"{intent.token}/{number}",
                    node_type=types.type_of_zone(intent.node_type, intent.zone),
                    phase=Phase.REQUESTED,
                    market=cast(Market, intent.market),
                    zone=intent.zone,
                    price_per_hour=intent.price_per_hour,
                    throttled=intent.throttled,
                )


class OfferingCache:
    """The provider's offerings, read in the background every hour, because prices change. A failed
    request is retried with backoff: e.g. while IAM propagates the head's role."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._request: asyncio.Task[Sequence[Offering]] | None = None
        self._fresh_until = float("-inf")
        self._backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)

    def poll(self, node_manager: NodeManager) -> Sequence[Offering] | None:
        """The offerings if new ones have arrived since the last call, else None."""
        now = self._clock.now()
        if self._request is None:
            if now >= self._fresh_until and not self._backoff.is_active(now):
                self._request = asyncio.ensure_future(node_manager.offerings())
            return None
        if not self._request.done():
            return None
        request, self._request = self._request, None
        if (error := request.exception()) is not None:
            _log.info("could not read the provider's offerings, retrying later: %s", error)
            self._backoff.record_failure(now)
            return None
        self._backoff.reset()
        self._fresh_until = now + _OFFERINGS_SECONDS
        _log.debug("the provider has %d offerings", len(request.result()))
        return request.result()

    def reset(self) -> None:
        """Cancel a request in flight; the next poll starts a new one at once."""
        if self._request is not None:
            self._request.cancel()
        self._request, self._fresh_until = None, float("-inf")
        self._backoff.reset()


def price_per_hour(nodes: Iterable[Node]) -> float:
    """What the existing instances cost, the head included, as far as prices are known."""
    return math.fsum(n.price_per_hour or 0.0 for n in nodes if n.phase is not Phase.STOPPED)


def _view(
    node: Node,
    ray: RayNode | None,
    node_type: str,
    movable: bool,
    is_unreachable: bool,
    is_outdated: bool,
    *,
    now: float,
) -> NodeView:
    phase = node.phase
    if phase is Phase.READY and ray is None:
        phase = Phase.STARTING  # it has started, and the GCS will list it in a moment
    return NodeView(
        id=node.id,
        node_type=node_type,
        phase=phase,
        is_head=node.role == "head",
        total=ray.total if ray else {},
        available=ray.available if ray else {},
        labels=ray.labels if ray else {},
        # Ray counts from its own start; before the node was ready, it could not be used.
        idle_s=min(ray.idle_s, now - node.since) if ray else 0.0,
        market=cast(Market, node.market),
        zone=node.zone,
        price_per_hour=node.price_per_hour,
        throttled=node.throttled,
        restartable=movable,
        interrupted=bool(node.interruption),
        unreachable=is_unreachable,
        outdated=is_outdated,
    )
