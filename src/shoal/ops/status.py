"""What a cluster looks like now, and which clusters there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal import providers
from shoal.events import Phase, Role
from shoal.ops import target
from shoal.ops.context import Context
from shoal.ops.up import alive_nodes
from shoal.providers.base import Instance, State
from shoal.spec.model import ClusterSpec


@dataclass(frozen=True)
class NodeStatus:
    """One node: what its provider and Ray say of it, joined."""

    name: str
    node_type: str
    role: Role
    phase: Phase
    detail: str
    address: str
    age_s: float
    total: Mapping[str, float] = field(default_factory=dict)
    available: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterStatus:
    """One cluster and all its nodes, the head first. No nodes: it is not up."""

    cluster: str
    provider: str
    nodes: tuple[NodeStatus, ...]
    address: str = ""
    dashboard: str = ""

    @property
    def ready(self) -> bool:
        return bool(self.nodes) and all(n.phase is Phase.READY for n in self.nodes)


async def status(ctx: Context, spec: ClusterSpec) -> ClusterStatus:
    """The cluster's nodes as they are now. Ray's own word decides whether a node is ready."""
    provider = providers.provider_for(spec, ctx.home, ctx.clock)
    instances = await provider.find(spec.cluster_name)
    head = next((i for i in instances if i.role == "head"), None)
    if head is None:
        nodes = [_status(ctx, i, Phase.FAILED, "the cluster has no head") for i in instances]
        return ClusterStatus(spec.cluster_name, spec.provider.type, tuple(nodes))
    alive = await alive_nodes(provider, spec, head)
    nodes = []
    for instance in sorted(instances, key=lambda i: (i.role != "head", i.created_at, i.name)):
        ray = alive.get(instance.id)
        if ray is not None:
            phase = Phase.DRAINING if ray.status == "draining" else Phase.READY
            nodes.append(_status(ctx, instance, phase, "", ray.total, ray.available))
        elif instance.state is State.RUNNING:
            nodes.append(_status(ctx, instance, Phase.FAILED, "Ray is not running on it"))
        else:
            nodes.append(_status(ctx, instance, _phase_of(instance.state), ""))
    start = provider.ray_start(spec, head, head)
    return ClusterStatus(
        spec.cluster_name, spec.provider.type, tuple(nodes), start.gcs_address, start.dashboard
    )


@dataclass(frozen=True)
class Listed:
    """One line of `shoal ls`."""

    cluster: str
    provider: str
    nodes: int
    age_s: float | None


async def ls(ctx: Context) -> list[Listed]:
    """Every cluster known here, and how many machines it has according to its provider."""
    specs = [target.recall(ctx, name) for name in await target.names(ctx)]
    return list(await asyncio.gather(*(_listed(ctx, spec) for spec in specs)))


async def _listed(ctx: Context, spec: ClusterSpec) -> Listed:
    provider = providers.provider_for(spec, ctx.home, ctx.clock)
    instances = await provider.find(spec.cluster_name)
    oldest = min((i.created_at for i in instances), default=None)
    age = None if oldest is None else ctx.clock.now() - oldest
    return Listed(spec.cluster_name, spec.provider.type, len(instances), age)


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
        age_s=ctx.clock.now() - instance.created_at,
        total=total or {},
        available=available or {},
    )


def _phase_of(state: State) -> Phase:
    return {
        State.PENDING: Phase.BOOTING,
        State.RUNNING: Phase.REACHABLE,
        State.STOPPING: Phase.TERMINATING,
        State.STOPPED: Phase.STOPPED,
        State.TERMINATING: Phase.TERMINATING,
        State.TERMINATED: Phase.GONE,
    }[state]
