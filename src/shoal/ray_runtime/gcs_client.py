"""A client of a cluster's GCS for processes on its head: reads demand and nodes, drains nodes, and
reports what `ray status` shows. Every call blocks, so run it in a thread; none decides anything.

Ray's messages grow with its releases: a field that an older Ray lacks must be optional.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from shoal.core.addresses import split_host_port
from shoal.core.errors import ShoalError, TransientError
from shoal.ray_runtime.installed_packages import InstalledPackages
from shoal.ray_runtime.nodes import RayNode
from shoal.ray_runtime.raylet_check import RayletCheck
from shoal.ray_runtime.scripts.list_nodes import read_nodes
from shoal.scaling import Demand, Gang, LabelRule, Request, Shape, Strategy

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 1.0
_CALL_SECONDS = 5.0
_STRATEGY = re.compile(r":([A-Z_]+)\|")
# A resource that Ray adds to the user's request to run on a node that it has already chosen.
_IMPLICIT = "node:__internal"
# Resources of a placement group's bundle exist only once the group is placed; the group itself is
# part of the demand as a gang.
_BUNDLE = "_group_"

# The namespace prefix of Ray's own drivers, such as the dashboard's.
_INTERNAL_NAMESPACE = "_ray_internal"

# Where Ray's job API keeps its jobs, and the states of a job that has not ended.
_JOB_INFO, _JOB_NAMESPACE = b"_ray_internal_job_info_", b"job"
_UNFINISHED = ("PENDING", "RUNNING")

Status = Literal["running", "idle", "draining", "unspecified"]


@dataclass(frozen=True)
class GcsReading:
    """The state of the GCS at one moment. `nodes` are the live nodes by instance id; `version` is
    the GCS's version of that state."""

    nodes: Mapping[str, RayNode] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    version: int = 0


@dataclass(frozen=True)
class PendingInstance:
    """An instance that is not a node yet, for `ray status`."""

    instance_id: str
    node_type: str
    address: str
    details: str


@dataclass(frozen=True)
class RequestedInstances:
    """Instances whose launch was requested and that are not listed yet, for `ray status`."""

    node_type: str
    count: int
    at: float


@dataclass(frozen=True)
class FailedLaunch:
    """Instances that could not be launched, for `ray status`."""

    node_type: str
    count: int
    reason: str
    at: float


class Gcs:
    """One cluster's GCS. Connects on first use, and again after every failure. `_known_nodes` holds
    the nodes of the last reading, `_raylets` those that have ended unnoticed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: Any = None
        self._accessor: Any = None
        self._known_nodes = NodeCache()
        self._packages = InstalledPackages()
        self._raylets = RayletCheck()

    def read(self) -> GcsReading:
        """The cluster's demand and nodes. Raises `TransientError` if the GCS does not answer."""
        with _as_transient_error(self):
            reply = _messages().GetClusterResourceStateReply()
            reply.ParseFromString(
                self._connected().get_cluster_resource_state(timeout_s=_CALL_SECONDS)
            )
            reading = parse(reply.cluster_resource_state, self._known_nodes)
            return self._without_ended_nodes(reading)

    def _without_ended_nodes(self, reading: GcsReading) -> GcsReading:
        """The reading without nodes whose raylet has ended. They are looked for while work is
        pending: it may have run on such a node."""
        is_pending = bool(reading.demand.requests or reading.demand.gangs)
        if is_pending and self._raylets.is_due(len(reading.nodes)):
            alive = {node.ray_id for node in reading.nodes.values()} - self._raylets.ended
            infos = self._connected().get_all_node_info(timeout=_CALL_SECONDS).values()
            raylets = {
                info.node_id.hex(): (info.node_manager_address, info.node_manager_port)
                for info in infos
                if info.node_id.hex() in alive
            }
            self._raylets.check(raylets)
        if not self._raylets.ended:
            return reading
        ended = self._raylets.ended
        nodes = {id: node for id, node in reading.nodes.items() if node.ray_id not in ended}
        return reading if len(nodes) == len(reading.nodes) else replace(reading, nodes=nodes)

    def live_nodes(self) -> list[dict[str, Any]]:
        """The nodes that run at this moment, as `scripts/list_nodes.py` prints them. Raises
        `TransientError` also if packages were installed or removed since this process started: that
        script then checks whether another Ray is installed."""
        if self._packages.have_changed():
            raise TransientError("packages were installed or removed")
        with _as_transient_error(self):
            return read_nodes(self._connected(), _messages(), self.address)

    def drain_idle(self, ray_id: str, why: str) -> tuple[bool, str]:
        """Drain a node that has no work; a node that has some refuses. Returns whether it accepted,
        and the reason if not."""
        reason = _messages().DRAIN_NODE_REASON_IDLE_TERMINATION
        return self._drain(ray_id, reason, why, deadline_ms=0)

    def drain_by_deadline(self, ray_id: str, why: str, deadline: float) -> tuple[bool, str]:
        """Drain a node, with or without work, that ends at `deadline` (epoch seconds). Returns as
        `drain_idle` does."""
        reason = _messages().DRAIN_NODE_REASON_PREEMPTION
        return self._drain(ray_id, reason, why, deadline_ms=int(deadline * 1000))

    def report(
        self,
        version: int,
        pending: Iterable[PendingInstance | RequestedInstances],
        failed: Iterable[FailedLaunch] = (),
    ) -> None:
        """Report the instances that are not nodes yet, which `ray status` shows. `version` is that
        of the last reading."""
        state = _autoscaling_state(version, pending, failed)
        with _as_transient_error(self):
            self._connected().report_autoscaling_state(state.SerializeToString())

    def has_drivers(self) -> bool:
        """Whether a user's driver is connected, even if it has no demand now, or a submitted job
        runs: its command may not use Ray, or not yet."""
        with _as_transient_error(self):
            if any(status in _UNFINISHED for status in self._submitted_jobs()):
                return True
            jobs = self._connected().get_all_job_info(
                skip_submission_job_info_field=True,
                skip_is_running_tasks_field=True,
                timeout=_CALL_SECONDS,
            )
            return any(
                not job.is_dead and not job.config.ray_namespace.startswith(_INTERNAL_NAMESPACE)
                for job in jobs.values()
            )

    def _submitted_jobs(self) -> Iterator[str]:
        """The status of each job that was submitted by Ray's job API."""
        client = self._connected()
        for key in client.internal_kv_keys(_JOB_INFO, _JOB_NAMESPACE, timeout=_CALL_SECONDS):
            content = client.internal_kv_get(key, _JOB_NAMESPACE, timeout=_CALL_SECONDS)
            if content is not None:
                yield json.loads(content).get("status", "")

    def nodes_with_actors(self) -> frozenset[str]:
        """The Ray ids of nodes with actors. Such a node may never become empty while it drains,
        because actors do not move."""
        from ray.core.generated import gcs_pb2

        with _as_transient_error(self):
            rows = self._tables().get_actor_table(None, "ALIVE")
            actors = (gcs_pb2.ActorTableData.FromString(row) for row in rows)
            return frozenset(actor.address.node_id.hex() for actor in actors)

    def disconnect(self) -> None:
        """Drop the connections; the next call opens new ones."""
        self._client = self._accessor = None

    def _drain(self, ray_id: str, reason: int, why: str, *, deadline_ms: int) -> tuple[bool, str]:
        arguments = (ray_id, reason, why, deadline_ms)
        with _as_transient_error(self):
            drain = self._connected().drain_node
            try:
                result = drain(*arguments, timeout=int(_CALL_SECONDS))
            except TypeError:  # the oldest supported Ray has no timeout parameter
                result = drain(*arguments)
            return cast("tuple[bool, str]", result)

    def _connected(self) -> Any:
        if self._client is None:
            # Ray's client waits long for a GCS that does not run; a closed port shows it at once.
            host, port = split_host_port(self.address)
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore]

            self._client = GcsClient(address=self.address)
        return self._client

    def _tables(self) -> Any:
        """The accessor of the GCS's tables, which Ray's client does not offer."""
        if self._accessor is None:
            self._connected()  # the accessor too would wait long for a GCS that does not run
            from ray import _raylet

            options = _raylet.GcsClientOptions.create(  # type: ignore[attr-defined,unused-ignore]
                self.address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
            )
            accessor = _raylet.GlobalStateAccessor(options)  # type: ignore[attr-defined,unused-ignore]
            accessor.connect()
            self._accessor = accessor
        return self._accessor


@contextlib.contextmanager
def _as_transient_error(gcs: Gcs) -> Iterator[None]:
    """Disconnect, and raise `TransientError`, whatever Ray's client raises."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        _log.debug("request to the GCS at %s failed: %s", gcs.address, error)
        gcs.disconnect()
        raise TransientError(
            "Ray on the head does not answer",
            why=f"{gcs.address}: {str(error) or type(error).__name__}",
            fix="the controller restarts Ray on the head if it has died",
        ) from error


class NodeCache:
    """The nodes of the last reading, by the bytes of their messages without the idle time. A node
    that has not changed is the same object again, or shares its parts: with thousands of nodes,
    that saves most of the work here and in the planner."""

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, RayNode] = {}

    def read(self, messages: Iterable[Any]) -> dict[str, RayNode]:
        """The live nodes by instance id."""
        pb = _messages()
        statuses = {number: name.lower() for name, number in pb.NodeStatus.items()}
        previous, current = self._by_bytes, {}
        nodes: dict[str, RayNode] = {}
        for message in messages:
            if message.status == pb.DEAD:
                continue
            idle_ms, message.idle_duration_ms = message.idle_duration_ms, 0
            raw = message.SerializeToString()
            node = previous.get(raw) or _node(message, statuses[message.status])
            current[raw] = node
            id = node.instance_id or node.ray_id
            nodes[id] = replace(node, idle_s=idle_ms / 1000) if idle_ms else node
        self._by_bytes = current
        return nodes


def parse(state: Any, cache: NodeCache | None = None) -> GcsReading:
    """A `ClusterResourceState` message as data."""
    return GcsReading(
        nodes=(cache or NodeCache()).read(state.node_states),
        demand=Demand(
            requests=_requests(state.pending_resource_requests),
            gangs=_gangs(state.pending_gang_resource_requests),
            floors=_requests(
                row for c in state.cluster_resource_constraints for row in c.resource_requests
            ),
        ),
        version=state.cluster_resource_state_version,
    )


def _node(node: Any, status: str) -> RayNode:
    return RayNode(
        ray_id=node.node_id.hex(),
        instance_id=node.instance_id,
        address=node.node_ip_address,
        node_type=node.ray_node_type_name,
        status=cast(Status, status),
        idle_s=0.0,
        total=dict(node.total_resources),
        available=dict(node.available_resources),
        labels=dict(getattr(node, "labels", {})),
    )


def _requests(rows: Iterable[Any]) -> tuple[Request, ...]:
    counts: dict[Shape, int] = {}
    for row in rows:
        shape = _shape(row.request)
        if shape is not None:
            counts[shape] = counts.get(shape, 0) + row.count
    return tuple(Request(shape, count) for shape, count in counts.items())


def _gangs(rows: Iterable[Any]) -> tuple[Gang, ...]:
    counts: dict[tuple[tuple[Shape, ...], Strategy], int] = {}
    for row in rows:
        bundles = tuple(sorted(s for s in map(_shape, _bundles(row)) if s is not None))
        key = (bundles, _strategy(row))
        counts[key] = counts.get(key, 0) + 1
    return tuple(Gang(bundles, strategy, n) for (bundles, strategy), n in counts.items() if bundles)


def _bundles(row: Any) -> Sequence[Any]:
    """The bundles of a placement group. A newer Ray lists alternatives, the preferred one first;
    only these have the label selectors of the bundles."""
    alternatives = getattr(row, "bundle_selectors", ())
    if alternatives and alternatives[0].resource_requests:
        return cast(Sequence[Any], alternatives[0].resource_requests)
    return cast(Sequence[Any], row.requests)


def _strategy(row: Any) -> Strategy:
    match = _STRATEGY.search(row.details)
    if match and match.group(1) in Strategy.__members__:
        return Strategy[match.group(1)]
    constraints = [c for request in row.requests for c in request.placement_constraints]
    if any(c.HasField("anti_affinity") for c in constraints):
        return Strategy.STRICT_SPREAD
    if any(c.HasField("affinity") for c in constraints):
        return Strategy.STRICT_PACK
    return Strategy.PACK


def _shape(request: Any) -> Shape | None:
    resources = {
        name: amount
        for name, amount in request.resources_bundle.items()
        if not name.startswith(_IMPLICIT)
    }
    if any(_BUNDLE in name for name in resources):
        return None
    return Shape.of(resources, map(_label_rules, getattr(request, "label_selectors", ())))


def _label_rules(selector: Any) -> list[LabelRule]:
    not_in = 2  # LABEL_OPERATOR_NOT_IN
    return [
        LabelRule(c.label_key, tuple(sorted(c.label_values)), negated=c.operator == not_in)
        for c in selector.label_constraints
    ]


def _autoscaling_state(
    version: int,
    pending: Iterable[PendingInstance | RequestedInstances],
    failed: Iterable[FailedLaunch],
) -> Any:
    pb = _messages()
    # The GCS silently drops a version older than the last one, so the clock is used.
    state = pb.AutoscalingState(
        last_seen_cluster_resource_state_version=version, autoscaler_state_version=time.time_ns()
    )
    for instance in pending:
        if isinstance(instance, RequestedInstances):
            state.pending_instance_requests.add(
                instance_type_name=instance.node_type,
                ray_node_type_name=instance.node_type,
                count=instance.count,
                request_ts=int(instance.at),
            )
            continue
        state.pending_instances.add(
            instance_type_name=instance.node_type,
            ray_node_type_name=instance.node_type,
            instance_id=instance.instance_id,
            ip_address=instance.address,
            details=instance.details,
        )
    for failure in failed:
        state.failed_instance_requests.add(
            instance_type_name=failure.node_type,
            ray_node_type_name=failure.node_type,
            count=failure.count,
            reason=failure.reason,
            start_ts=int(failure.at),
            failed_ts=int(failure.at),
        )
    return state


def preload() -> None:
    """Import what the first reading needs, which takes a second or more."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore] # noqa: F401

    _messages()


def _messages() -> Any:
    from ray.core.generated import autoscaler_pb2

    return autoscaler_pb2
