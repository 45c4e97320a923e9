"""What a cluster looks like now, and which clusters there are."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.bootstrap import applied_state
from shoal.cluster.handle import ClusterHandle
from shoal.controller import client
from shoal.controller.client import Report
from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.core.events import Warned
from shoal.core.node_phase import Phase, Role
from shoal.ops import cluster_lookup, ray_versions
from shoal.ops.context import Context
from shoal.ops.up_plan import spare_workers
from shoal.providers.model import Instance, State
from shoal.ray_runtime.nodes import RayNode
from shoal.spec.cluster_spec import ClusterSpec

# How long a machine may take to say how it is.
_ANSWER_SECONDS = 15.0
_MUTE = "it does not answer"
_HEAD_MUTE = "its head does not answer"


@dataclass(frozen=True)
class NodeStatus:
    """One node: what its provider and Ray say of it, joined."""

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

    @property
    def is_leaving(self) -> bool:
        return self.phase in (Phase.DRAINING, Phase.TERMINATING)


@dataclass(frozen=True)
class ClusterStatus:
    """One cluster and all its nodes, the head first, and what its controller says if it has one.
    No nodes: it is not up."""

    cluster: str
    provider: str
    nodes: tuple[NodeStatus, ...]
    address: str = ""
    dashboard: str = ""
    controller: Report | None = None

    @property
    def price_per_hour(self) -> float:
        """What its machines cost now, as far as prices are known."""
        return math.fsum(n.price_per_hour or 0.0 for n in self.nodes if n.phase in _PAID_FOR)

    @property
    def wanted(self) -> list[NodeStatus]:
        """The nodes that are to stay: a cluster that shrinks misses none."""
        return [n for n in self.nodes if not (n.is_spare or n.is_leaving)]

    @property
    def ready(self) -> bool:
        has_head = any(n.role == "head" for n in self.wanted)
        return has_head and all(n.phase is Phase.READY for n in self.wanted)


async def status(ctx: Context, spec: ClusterSpec) -> ClusterStatus:
    """The cluster's nodes as they are now. Ray's own word decides whether a node is ready."""
    cluster = ClusterHandle.of(ctx, spec)
    instances = await cluster.instances()
    head = next((i for i in instances if i.role == "head"), None)
    alive: Mapping[str, RayNode] = {}
    start = report = None
    if head is not None:
        start = cluster.ray_start(head, head)
        if head.state is State.RUNNING:
            alive, report = await asyncio.gather(cluster.list_nodes(head), _report(cluster, head))
    silent = [i for i in instances if i.state is State.RUNNING and i.id not in alive]
    if silent and head is not None and report is not None:
        # Asking Ray takes longest. One that was given back meanwhile is not one that failed.
        instances, report = await asyncio.gather(cluster.instances(), _report(cluster, head))
        silent = [i for i in instances if i.state is State.RUNNING and i.id not in alive]
        head = next((i for i in instances if i.role == "head"), None)
    told = await _receipts(cluster, silent)
    stopped = [i for i in silent if i.id in told and told[i.id].start == applied_state.STOPPED]
    mute = [i for i in silent if i.id not in told]
    asked = [i for i in silent if i not in (*stopped, *mute)]
    odd: Mapping[str, str] = {}
    if head is not None and head not in mute:
        odd = await ray_versions.differing(cluster, head, [i for i in asked if i is not head])
    spare = spare_workers(spec, instances) if head and head.state is State.RUNNING else []
    doing = _doing(report)
    order = sorted(instances, key=lambda i: (i.role != "head", i.created_at or 0, i.name))
    nodes = [
        _spare(ctx, i)
        if i in spare
        else _stopped(ctx, i)
        if i in stopped
        else _status(ctx, i, *doing[i.id])
        if i.id in doing and i.id not in alive
        else _status(ctx, i, Phase.FAILED, odd[i.id])
        if i.id in odd
        else _status(ctx, i, Phase.FAILED, _MUTE if i in mute else _HEAD_MUTE)
        if i in mute or (i in silent and head in mute)
        else _node(ctx, i, alive.get(i.id), has_head=bool(head))
        for i in order
    ]
    return ClusterStatus(
        spec.cluster_name,
        spec.provider.type,
        tuple(nodes),
        start.gcs_address if start else "",
        start.dashboard if start else "",
        report,
    )


async def _report(cluster: ClusterHandle, head: Instance) -> Report | None:
    """What the controller says. That its head does not answer is told with the head."""
    with contextlib.suppress(ShoalError):
        return await client.read_report(cluster, head)
    return None


def _doing(report: Report | None) -> dict[str, tuple[Phase, str]]:
    """The phase of each node that the controller is busy with, and what it says of it."""
    if report is None or not report.alive:
        return {}
    phases = {n["id"]: (Phase(n["phase"]), str(n["detail"])) for n in report.state.nodes}
    return {id: entry for id, entry in phases.items() if entry[0] is not Phase.READY}


async def _receipts(
    cluster: ClusterHandle, instances: Sequence[Instance]
) -> dict[str, applied_state.AppliedState]:
    """What was last done to these machines, by id; one that does not answer soon is left out."""
    found: dict[str, applied_state.AppliedState] = {}

    async def ask(instance: Instance) -> None:
        with contextlib.suppress(ShoalError, asyncio.TimeoutError):
            now = await asyncio.wait_for(cluster.probe(instance), _ANSWER_SECONDS)
            found[instance.id] = now.applied_state

    await run_all(ask(instance) for instance in instances)
    return found


def _spare(ctx: Context, instance: Instance) -> NodeStatus:
    why = "switched off until it is needed; its volumes cost money"
    return replace(_status(ctx, instance, Phase.STOPPED, why), is_spare=True)


def _stopped(ctx: Context, instance: Instance) -> NodeStatus:
    return _status(ctx, instance, Phase.STOPPED, "Ray was stopped; shoal start brings it back")


def _node(ctx: Context, instance: Instance, ray: RayNode | None, *, has_head: bool) -> NodeStatus:
    if ray is not None:
        phase = Phase.DRAINING if ray.status == "draining" else Phase.READY
        return _status(ctx, instance, phase, "", ray.total, ray.available)
    if instance.state is State.UNREACHABLE:
        return _status(ctx, instance, Phase.FAILED, "cannot be reached")
    if instance.state is State.RUNNING:
        why = "Ray is not running on it" if has_head else "the cluster has no head"
        return _status(ctx, instance, Phase.FAILED, why)
    return _status(ctx, instance, _PHASES[instance.state], "")


@dataclass(frozen=True)
class ClusterSummary:
    """One line of `shoal ls`. The price is not `complete` where nobody knows that of a machine
    which has one; with a `problem`, nobody could say anything."""

    cluster: str
    provider: str
    nodes: int
    age_s: float | None
    price_per_hour: float = 0.0
    complete: bool = True
    problem: str = ""


async def ls(ctx: Context) -> list[ClusterSummary]:
    """Every cluster known here, and how many machines it has according to its provider."""
    return await run_all(_listed(ctx, name) for name in await cluster_lookup.names(ctx))


async def _listed(ctx: Context, name: str) -> ClusterSummary:
    provider = ""
    try:
        spec = cluster_lookup.recall(ctx, name)
        provider = spec.provider.type
        cluster = ClusterHandle.of(ctx, spec)
        instances = await cluster.instances()
    except ShoalError as error:
        # The others are there, whatever is wrong with this one.
        ctx.emit(Warned(f"cluster {name} cannot be asked for", str(error), error.fix))
        return ClusterSummary(name, provider, 0, None, complete=False, problem=error.what)
    there = [i for i in instances if i.state is not State.UNREACHABLE]
    oldest = min((i.created_at for i in there if i.created_at is not None), default=None)
    age = None if oldest is None else ctx.clock.now() - oldest
    on = [i for i in there if i.state not in (State.STOPPED, State.TERMINATED)]
    price = math.fsum(i.price_per_hour or 0.0 for i in on)
    complete = not cluster.capabilities.costs_money or all(i.price_per_hour is not None for i in on)
    return ClusterSummary(name, provider, len(there), age, price, complete)


def _status(
    ctx: Context,
    instance: Instance,
    phase: Phase,
    detail: str,
    total: Mapping[str, float] | None = None,
    available: Mapping[str, float] | None = None,
) -> NodeStatus:
    return NodeStatus(
        name=instance.name,
        node_type=instance.node_type,
        role=instance.role,
        phase=phase,
        detail=detail,
        address=instance.address,
        age_s=None if instance.created_at is None else ctx.clock.now() - instance.created_at,
        price_per_hour=instance.price_per_hour,
        total=total or {},
        available=available or {},
    )


_PAID_FOR = frozenset(Phase) - {Phase.STOPPED, Phase.GONE}
_PHASES = {
    State.PENDING: Phase.BOOTING,
    State.STOPPING: Phase.TERMINATING,
    State.STOPPED: Phase.STOPPED,
    State.TERMINATING: Phase.TERMINATING,
    State.TERMINATED: Phase.GONE,
}
