"""The state of a cluster's nodes: what its provider, Ray and its controller report, joined."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.bootstrap import applied_state
from shoal.bootstrap.node_probe import NodeProbe
from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_reader
from shoal.controller.status_reader import StatusReport
from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError, UnreachableError
from shoal.core.events import Warned
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import PENDING_PHASES, Phase, Role
from shoal.core.polling import PollUntilDeadline
from shoal.ops.context import Context
from shoal.ops.up_plan import spare_workers
from shoal.providers.model import Instance, State, head_of
from shoal.ray_runtime.nodes import RayNode
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 15.0
_AGREE_SECONDS = 5.0
_AGREE_POLL_SECONDS = 0.3


@dataclass(frozen=True)
class NodeStatus:
    """One node: its instance and its Ray node, joined. `tasks` and `actors` run on it; None where
    Ray does not say."""

    name: str
    node_type: str
    role: Role
    phase: Phase
    detail: str
    address: str
    age_s: float | None
    price_per_hour: float | None = None
    total: Mapping[str, float] = field(default_factory=dict)
    available: Mapping[str, float] = field(default_factory=dict)
    is_spare: bool = False
    tasks: int | None = None
    actors: int | None = None

    @property
    def is_leaving(self) -> bool:
        return self.phase in (Phase.DRAINING, Phase.TERMINATING)


@dataclass(frozen=True)
class ClusterStatus:
    """One cluster and its nodes, the head first, with the controller's report if it has one. A
    cluster without nodes is not up."""

    cluster: str
    provider: str
    nodes: tuple[NodeStatus, ...]
    address: str = ""
    dashboard: str = ""
    controller: StatusReport | None = None
    # How many workers of each type are missing to min_workers.
    missing: Mapping[str, int] = field(default_factory=dict)
    # When and why a cluster that is not up shut itself down, if that is known.
    shutdown: str = ""

    @property
    def price_per_hour(self) -> float:
        """The price of the running instances, as far as it is known."""
        return math.fsum(n.price_per_hour or 0.0 for n in self.nodes if n.phase in _BILLED)

    @property
    def expected(self) -> list[NodeStatus]:
        """The existing nodes that should be ready: spares and nodes that are leaving do not
        count."""
        return [n for n in self.nodes if not (n.is_spare or n.is_leaving)]

    @property
    def ready(self) -> bool:
        has_head = any(n.role == "head" for n in self.expected)
        is_complete = has_head and not any(self.missing.values())
        return is_complete and all(n.phase is Phase.READY for n in self.expected)


async def status(ctx: Context, spec: ClusterSpec) -> ClusterStatus:
    """The cluster's nodes now. A node is ready only if Ray lists it as alive."""
    cluster = ClusterHandle.of(ctx, spec)
    instances = await cluster.instances()
    head = head_of(instances)
    alive: Mapping[str, RayNode] = {}
    start = report = None
    ray_error = ""
    if head is not None:
        start = cluster.ray_start(head, head)
        if head.state is State.RUNNING:
            (alive, ray_error), report = await asyncio.gather(
                _ray_nodes(cluster, head), _report(ctx, cluster, head)
            )
    missing = _not_alive(instances, alive)
    if missing and head is not None and report is not None:
        # Querying Ray is the slowest step: an instance that was terminated meanwhile has not
        # failed, so list again.
        instances, report = await asyncio.gather(cluster.instances(), _report(ctx, cluster, head))
        missing = _not_alive(instances, alive)
        head = head_of(instances)
    if report is not None and cluster.capabilities.controller_launches_workers:
        instances = [*instances, *_known_to_controller(spec, report, instances)]
        missing = _not_alive(instances, alive)
    if head is not None and report is not None:
        report = await _agreeing_report(ctx, cluster, head, report, alive)
    details = await _diagnose(cluster, head, missing, report, ray_error)
    spares = spare_workers(spec, instances) if head and head.state is State.RUNNING else []
    order = sorted(instances, key=lambda i: (i.role != "head", i.created_at or 0, i.name))
    nodes = []
    for instance in order:
        if instance in spares:
            why = "stopped until it is needed; its volumes are still billed"
            node = replace(_status(ctx, instance, Phase.STOPPED, why), is_spare=True)
        elif (ray_node := alive.get(instance.id)) is not None:
            phase = Phase.DRAINING if ray_node.status == "draining" else Phase.READY
            node = _status(ctx, instance, phase, "", ray_node.total, ray_node.available)
            node = replace(node, tasks=ray_node.tasks, actors=ray_node.actors)
        elif instance.id in details:
            node = _status(ctx, instance, *details[instance.id])
        else:
            node = _status(ctx, instance, *_from_provider(instance, has_head=bool(head)))
        nodes.append(node)
    return ClusterStatus(
        spec.cluster_name,
        spec.provider.type,
        tuple(nodes),
        start.gcs_address if start else "",
        start.dashboard if start else "",
        report,
        _missing_workers(spec, report, nodes) if head is not None else {},
        cluster.shutdown if not nodes else "",
    )


async def _ray_nodes(cluster: ClusterHandle, head: Instance) -> tuple[dict[str, RayNode], str]:
    """Ray's nodes, and why Ray could not be asked."""
    try:
        return await cluster.list_nodes(head), ""
    except ShoalError as error:
        _log.info("could not list Ray's nodes: %s", error)
        return {}, error.why or error.what


def _missing_workers(
    spec: ClusterSpec, report: StatusReport | None, nodes: Sequence[NodeStatus]
) -> dict[str, int]:
    """How many workers of each type are missing to min_workers: to those that a running controller
    follows, else to those of the file."""
    minimum = {name: t.min_workers for name, t in spec.node_types.items()}
    if report is not None and report.alive:
        types = report.state.limits.get("types", {})
        minimum = {name: limits["min_workers"] for name, limits in types.items()}
    counts = Counter(n.node_type for n in nodes if n.role == "worker" and not n.is_leaving)
    return {name: n - counts[name] for name, n in minimum.items() if n > counts[name]}


def _known_to_controller(
    spec: ClusterSpec, report: StatusReport, listed: Sequence[Instance]
) -> list[Instance]:
    """The workers that only the controller knows, because their provider's state is on the head."""
    ids = {instance.id for instance in listed}
    return [
        Instance(
            id=node["id"],
            cluster=spec.cluster_name,
            name=node["name"],
            node_type=node["node_type"],
            role="worker",
            state=State.RUNNING,
            address=node.get("address", ""),
            created_at=node.get("created"),
        )
        for node in report.state.nodes
        if node["role"] == "worker" and node["id"] not in ids
    ]


def _not_alive(instances: Sequence[Instance], alive: Mapping[str, RayNode]) -> list[Instance]:
    """Running instances that Ray does not list."""
    return [i for i in instances if i.state is State.RUNNING and i.id not in alive]


async def _report(ctx: Context, cluster: ClusterHandle, head: Instance) -> StatusReport | None:
    """The controller's report; None if it has none or it cannot be read."""
    try:
        return await status_reader.read_status(cluster, head)
    except UnreachableError as error:
        _log.info("could not read the controller's report: %s", error)  # the nodes' phases tell
    except ShoalError as error:
        ctx.emit(Warned(error.what, error.why, error.fix, error.node))
    return None


async def _agreeing_report(
    ctx: Context,
    cluster: ClusterHandle,
    head: Instance,
    report: StatusReport,
    alive: Mapping[str, RayNode],
) -> StatusReport:
    """A report in which no node is pending that Ray lists as alive. The controller notices a node
    that has joined within a second or two; until then both together would contradict each other."""
    async for _ in PollUntilDeadline(ctx.clock, _AGREE_SECONDS, _AGREE_POLL_SECONDS):
        pending = {n["id"] for n in report.state.nodes if Phase(n["phase"]) in PENDING_PHASES}
        if not report.alive or not pending & alive.keys():
            break
        report = await _report(ctx, cluster, head) or report
    return report


async def _diagnose(
    cluster: ClusterHandle,
    head: Instance | None,
    missing: Sequence[Instance],
    report: StatusReport | None,
    ray_error: str,
) -> dict[str, tuple[Phase, str]]:
    """Phase and reason of running instances that are not in Ray, by id; the first cause that
    applies: stopped on purpose, in progress, wrong Ray version, no answer from it or its head, no
    Ray. With a `ray_error`, Ray could not be asked, and its running nodes are unknown."""
    probes = await _probe_all(cluster, missing)
    unreachable = [i for i in missing if i.id not in probes]
    stopped = [
        i for i in missing if i.id in probes and probes[i.id].applied_state.start == _STOPPED
    ]
    others = [i for i in missing if i not in (*stopped, *unreachable)]
    details: dict[str, tuple[Phase, str]] = {}
    for instance in others:
        if ray_error and probes[instance.id].ray_runs:
            details[instance.id] = Phase.UNKNOWN, f"Ray cannot be asked: {ray_error}"
        elif head is not None and probes[instance.id].ray_runs:
            details[instance.id] = Phase.FAILED, "its Ray has not joined the cluster"
    for instance in unreachable:
        details[instance.id] = Phase.FAILED, "does not answer"
    if head is not None and head in unreachable:
        for instance in others:
            details[instance.id] = Phase.FAILED, "the head does not answer"
    elif head is not None:
        # Loaded here: most clusters have no such node, and `status` should start quickly.
        from shoal.ops.preflight import ray_version_mismatches

        workers = [i for i in others if i is not head]
        mismatches = await ray_version_mismatches(cluster, head, workers)
        details.update({id: (Phase.FAILED, mismatch) for id, mismatch in mismatches.items()})
    details.update(_in_progress(report))
    for instance in stopped:
        why = f"Ray was stopped; start it again: shoal start {cluster.name}"
        details[instance.id] = Phase.STOPPED, why
    return details


def _in_progress(report: StatusReport | None) -> dict[str, tuple[Phase, str]]:
    """Phase and detail of each node that the controller is working on, by id."""
    if report is None or not report.alive:
        return {}
    phases = {n["id"]: (Phase(n["phase"]), str(n["detail"])) for n in report.state.nodes}
    return {id: entry for id, entry in phases.items() if entry[0] is not Phase.READY}


async def _probe_all(cluster: ClusterHandle, instances: Sequence[Instance]) -> dict[str, NodeProbe]:
    """The probe of each instance that answers in time, by id."""
    probes: dict[str, NodeProbe] = {}

    async def probe(instance: Instance) -> None:
        with suppress_and_log(_log, f"probe {instance.name}", ShoalError, asyncio.TimeoutError):
            probes[instance.id] = await asyncio.wait_for(cluster.probe(instance), _PROBE_SECONDS)

    await run_all(probe(instance) for instance in instances)
    return probes


def _from_provider(instance: Instance, *, has_head: bool) -> tuple[Phase, str]:
    """Phase and reason of an instance of which only its provider's state is known."""
    if instance.state is State.UNREACHABLE:
        return Phase.FAILED, "unreachable"
    if instance.state is State.RUNNING:
        why = "Ray is not running on it" if has_head else "the cluster has no head"
        return Phase.FAILED, why
    return _PHASES[instance.state], ""


def _status(
    ctx: Context,
    instance: Instance,
    phase: Phase,
    detail: str,
    total: Mapping[str, float] | None = None,
    available: Mapping[str, float] | None = None,
) -> NodeStatus:
    age = None if instance.created_at is None else ctx.clock.now() - instance.created_at
    return NodeStatus(
        name=instance.name,
        node_type=instance.node_type,
        role=instance.role,
        phase=phase,
        detail=detail,
        address=instance.address,
        age_s=None if age is None else max(0.0, age),  # the provider's clock may be ahead
        price_per_hour=instance.price_per_hour,
        total=total or {},
        available=available or {},
    )


_STOPPED = applied_state.STOPPED
_BILLED = frozenset(Phase) - {Phase.STOPPED, Phase.GONE}
_PHASES = {
    State.PENDING: Phase.BOOTING,
    State.STOPPING: Phase.TERMINATING,
    State.STOPPED: Phase.STOPPED,
    State.TERMINATING: Phase.TERMINATING,
    State.TERMINATED: Phase.GONE,
}
