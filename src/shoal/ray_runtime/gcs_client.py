"""A cluster's GCS, asked from a process on its head: demand, nodes, drains, and what `ray status`
is to show. Every call blocks, so run them in a thread; none decides anything.

Ray's messages grow with its releases: a field that an older Ray lacks is left out, never missed.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from shoal.core.errors import ShoalError, TransientError
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import Demand, Gang, LabelRule, Request, Shape, Strategy

_CONNECT_SECONDS = 1.0
_CALL_SECONDS = 5.0
_STRATEGY = re.compile(r":([A-Z_]+)\|")
# What Ray asks for beside the user's wish: to run on a node that it has already chosen.
_IMPLICIT = "node:__internal"
# Resources of a placement group's bundle exist only once the group is placed; the group itself
# is in the demand as a gang.
_BUNDLE = "_group_"

# Programs of Ray itself, such as the dashboard's.
_RAYS_OWN = "_ray_internal"

Status = Literal["running", "idle", "draining", "unspecified"]


@dataclass(frozen=True)
class Reading:
    """What the GCS knew at one moment. `nodes` has the live ones by instance id."""

    nodes: Mapping[str, RayNode] = field(default_factory=dict)
    demand: Demand = field(default_factory=Demand)
    version: int = 0


@dataclass(frozen=True)
class Pending:
    """A machine on its way, for `ray status`."""

    instance_id: str
    node_type: str
    address: str
    details: str


@dataclass(frozen=True)
class Requested:
    """Machines that were asked for, and of which nothing is known yet, for `ray status`."""

    node_type: str
    count: int
    at: float


@dataclass(frozen=True)
class Failed:
    """Machines that could not be had, for `ray status`."""

    node_type: str
    count: int
    reason: str
    at: float


class Gcs:
    """One cluster's GCS. Makes its connection on first use and again after every failure."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: Any = None
        self._accessor: Any = None
        self._known = KnownNodes()

    def read(self) -> Reading:
        """Everything the controller needs to know. Raises `TransientError` when the GCS is
        silent."""
        with _Translated(self):
            reply = _messages().GetClusterResourceStateReply()
            reply.ParseFromString(
                self._connected().get_cluster_resource_state(timeout_s=_CALL_SECONDS)
            )
            return parse(reply.cluster_resource_state, self._known)

    def drain_idle(self, ray_id: str, why: str) -> tuple[bool, str]:
        """Ask a node to take no more work, which it refuses when it has some. Returns whether it
        agreed, and its words if not."""
        reason = _messages().DRAIN_NODE_REASON_IDLE_TERMINATION
        return self._drain(ray_id, reason, why, deadline_ms=0)

    def drain_busy(self, ray_id: str, why: str, deadline: float) -> tuple[bool, str]:
        """Keep new work away from a node that is wanted back by `deadline`, epoch seconds."""
        reason = _messages().DRAIN_NODE_REASON_PREEMPTION
        return self._drain(ray_id, reason, why, deadline_ms=int(deadline * 1000))

    def report(
        self, version: int, machines: Iterable[Pending | Requested], failed: Iterable[Failed] = ()
    ) -> None:
        """Tell the GCS what `ray status` shows of machines that are no nodes yet."""
        state = _report(version, machines, failed)
        with _Translated(self):
            self._connected().report_autoscaling_state(state.SerializeToString())

    def has_drivers(self) -> bool:
        """Whether a program of a person's is connected, also one that asks for nothing now."""
        with _Translated(self):
            jobs = self._connected().get_all_job_info(
                skip_submission_job_info_field=True,
                skip_is_running_tasks_field=True,
                timeout=_CALL_SECONDS,
            )
            return any(
                not job.is_dead and not job.config.ray_namespace.startswith(_RAYS_OWN)
                for job in jobs.values()
            )

    def pinned(self) -> frozenset[str]:
        """The Ray ids of nodes with actors: what drains there may never be empty, since actors
        stay where they are for as long as they live."""
        from ray.core.generated import gcs_pb2

        with _Translated(self):
            rows = self._tables().get_actor_table(None, "ALIVE")
            actors = (gcs_pb2.ActorTableData.FromString(row) for row in rows)
            return frozenset(actor.address.node_id.hex() for actor in actors)

    def forget(self) -> None:
        """Let go of the connections; the next call makes new ones."""
        self._client = self._accessor = None

    def _drain(self, ray_id: str, reason: int, why: str, *, deadline_ms: int) -> tuple[bool, str]:
        words = (ray_id, reason, why, deadline_ms)
        with _Translated(self):
            drain = self._connected().drain_node
            try:
                answer = drain(*words, timeout=int(_CALL_SECONDS))
            except TypeError:  # the oldest Rays have a deadline of their own for it
                answer = drain(*words)
            return cast("tuple[bool, str]", answer)

    def _connected(self) -> Any:
        if self._client is None:
            # Ray's own client waits long for a GCS that is not there; a port tells at once.
            host, _, port = self.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore]

            self._client = GcsClient(address=self.address)
        return self._client

    def _tables(self) -> Any:
        """The way to the GCS's tables, which the client does not have."""
        if self._accessor is None:
            self._connected()  # or it would wait long for a GCS that is not there
            from ray import _raylet

            options = _raylet.GcsClientOptions.create(  # type: ignore[attr-defined,unused-ignore]
                self.address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
            )
            accessor = _raylet.GlobalStateAccessor(options)  # type: ignore[attr-defined,unused-ignore]
            accessor.connect()
            self._accessor = accessor
        return self._accessor


class _Translated:
    """Turns whatever Ray's client raises into one error that can be switched on."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, ShoalError):
            self._gcs.forget()
            raise TransientError(
                "Ray on the head does not answer",
                why=f"{self._gcs.address}: {str(error) or type(error).__name__}",
                fix="the controller restarts a head whose Ray has died",
            ) from error


class KnownNodes:
    """The nodes of the last reading, by the very bytes that they came in, but for how long they are
    idle. One that has not changed since is the same object again, or shares all that is in it:
    that spares whoever looks at thousands of them most of the work, here and further on."""

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, RayNode] = {}

    def read(self, messages: Iterable[Any]) -> dict[str, RayNode]:
        """The live nodes by instance id."""
        pb = _messages()
        statuses = {number: name.lower() for name, number in pb.NodeStatus.items()}
        before, now = self._by_bytes, {}
        found: dict[str, RayNode] = {}
        for message in messages:
            if message.status == pb.DEAD:
                continue
            idle_ms, message.idle_duration_ms = message.idle_duration_ms, 0
            raw = message.SerializeToString()
            node = before.get(raw) or _node(message, statuses[message.status])
            now[raw] = node
            name = node.instance_id or node.ray_id
            found[name] = replace(node, idle_s=idle_ms / 1000) if idle_ms else node
        self._by_bytes = now
        return found


def parse(state: Any, known: KnownNodes | None = None) -> Reading:
    """A `ClusterResourceState` message as data."""
    return Reading(
        nodes=(known or KnownNodes()).read(state.node_states),
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
    """The bundles of a placement group. A newer Ray lists alternatives; the first is preferred."""
    alternatives = getattr(row, "bundle_selectors", ())
    if not row.requests and alternatives:
        return cast(Sequence[Any], alternatives[0].resource_requests)
    return cast(Sequence[Any], row.requests)


def _strategy(row: Any) -> Strategy:
    found = _STRATEGY.search(row.details)
    if found and found.group(1) in Strategy.__members__:
        return Strategy[found.group(1)]
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
    return Shape.of(resources, map(_rules, getattr(request, "label_selectors", ())))


def _rules(selector: Any) -> list[LabelRule]:
    not_in = 2  # LABEL_OPERATOR_NOT_IN
    return [
        LabelRule(c.label_key, tuple(sorted(c.label_values)), negated=c.operator == not_in)
        for c in selector.label_constraints
    ]


def _report(version: int, machines: Iterable[Pending | Requested], failed: Iterable[Failed]) -> Any:
    pb = _messages()
    # An older state version than the last is dropped without a word: the time always grows.
    state = pb.AutoscalingState(
        last_seen_cluster_resource_state_version=version, autoscaler_state_version=time.time_ns()
    )
    for machine in machines:
        if isinstance(machine, Requested):
            state.pending_instance_requests.add(
                instance_type_name=machine.node_type,
                ray_node_type_name=machine.node_type,
                count=machine.count,
                request_ts=int(machine.at),
            )
            continue
        state.pending_instances.add(
            instance_type_name=machine.node_type,
            ray_node_type_name=machine.node_type,
            instance_id=machine.instance_id,
            ip_address=machine.address,
            details=machine.details,
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


def load() -> None:
    """Load what the first reading would load, which takes a second or more."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined,unused-ignore] # noqa: F401

    _messages()


def _messages() -> Any:
    from ray.core.generated import autoscaler_pb2

    return autoscaler_pb2
