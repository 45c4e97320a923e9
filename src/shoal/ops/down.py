"""Gives a cluster's machines back. Needs nothing but the cluster's name, and finishes what an
interrupted run began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal import providers
from shoal.errors import TransientError
from shoal.events import ClusterGone, NodeChanged, Phase, PlanStep, Stage, Unchanged
from shoal.ops import control, target
from shoal.ops.context import Context
from shoal.ops.site import Site
from shoal.providers.base import Instance, State
from shoal.spec.model import ClusterSpec


@dataclass(frozen=True)
class DownResult:
    """How many machines were ended; none when the person said no."""

    ended: int | None


async def down(ctx: Context, spec: ClusterSpec) -> DownResult:
    """End every machine of the cluster and believe it only when the provider says so."""
    began = ctx.clock.monotonic()
    provider = providers.provider_for(spec, ctx.home, ctx.clock, ctx.emit)
    instances = await provider.find(spec.cluster_name)
    if not instances:
        if removed := await provider.release(spec):
            ctx.emit(Stage(f"removed what was left: {', '.join(removed)}"))
        target.forget(ctx, spec.cluster_name)
        ctx.emit(Unchanged(spec.cluster_name, "there is nothing to end"))
        return DownResult(0)
    for i in instances:
        ctx.emit(PlanStep("terminate", i.name, f"{i.node_type}, {i.address}"))
    if not ctx.confirm(f"End cluster {spec.cluster_name} and its {len(instances)} nodes?"):
        return DownResult(None)

    await _dismiss_controller(ctx, spec, instances)
    instances = await provider.find(spec.cluster_name)
    for i in instances:
        ctx.emit(NodeChanged(i.name, i.node_type, i.role, Phase.TERMINATING, "", i.address))
    await provider.terminate(spec, instances)
    left = await provider.find(spec.cluster_name)
    if left:
        raise TransientError(
            f"{len(left)} machines of {spec.cluster_name} are still there: "
            + ", ".join(i.name for i in left),
            why="they were asked to end, or were created meanwhile",
            fix="shoal down again finishes the job",
        )
    await provider.release(spec)
    for i in instances:
        ctx.emit(NodeChanged(i.name, i.node_type, i.role, Phase.GONE, "", i.address))
    target.forget(ctx, spec.cluster_name)
    seconds = ctx.clock.monotonic() - began
    ctx.emit(ClusterGone(spec.cluster_name, len(instances), seconds))
    return DownResult(len(instances))


async def _dismiss_controller(
    ctx: Context, spec: ClusterSpec, instances: Sequence[Instance]
) -> None:
    """See to it that nobody launches machines while they are being ended."""
    site = Site.of(ctx, spec)
    for instance in instances:
        if instance.role == "head" and instance.state is State.RUNNING:
            await control.dismiss(site, instance)
