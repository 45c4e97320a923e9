"""Gives a cluster's machines back. Needs nothing but the cluster's name, and finishes what an
interrupted run began."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal import providers
from shoal.cluster.handle import ClusterHandle
from shoal.controller import client
from shoal.core.errors import IncompleteError, SetupError, ShoalError, TransientError
from shoal.core.events import ClusterGone, ClusterScaledDown, PlanStep, Stage, Unchanged, Warned
from shoal.core.node_phase import Phase
from shoal.ops import cluster_lookup, cost, ssh_config, stop_start
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class DownResult:
    """How many machines were ended; none when the person said no."""

    ended: int | None


@dataclass(frozen=True)
class Keep:
    """What is not to be ended: the head, or as many workers of each type as its minimum."""

    head: bool = False
    min_workers: bool = False


async def down(ctx: Context, spec: ClusterSpec, keep: Keep | None = None) -> DownResult:
    """End the cluster's machines and believe it only when the provider says so. Where the file
    wants them to be kept, they are switched off, and what that costs is told."""
    began = ctx.clock.monotonic()
    cluster = ClusterHandle(providers.provider_for(spec, ctx.home, ctx.clock, ctx.emit), spec)
    there = await cluster.instances()
    if there and spec.shoal.down == "stop" and keep in (None, Keep()):
        if not stop_start.loses_head(there):
            return await _switch_off(ctx, spec)
        what, why = "the machines end", "the head is a spot machine, which cannot be switched off"
        ctx.emit(Warned(what, f"shoal.down in the file is stop, but {why}"))
    kept = _kept(spec, there, keep or Keep())
    ending = [i for i in there if i not in kept]
    if not there:
        if removed := await cluster.release():
            ctx.emit(Stage(f"removed what was left: {', '.join(removed)}"))
        _forget(ctx, spec.cluster_name)
    if not ending:
        ctx.emit(Unchanged(spec.cluster_name, "there is nothing to end"))
        return DownResult(0)
    for i in ending:
        ctx.emit(PlanStep("terminate", i.name, f"{i.node_type}, {i.address}"))
    what = f"{len(ending)} of the {len(there)} nodes of" if kept else "all nodes of"
    if not ctx.confirm(f"End {what} cluster {spec.cluster_name}?"):
        return DownResult(None)

    await _dismiss_controller(ctx, cluster, there)
    # It may have launched machines while the question was being answered.
    there = await cluster.instances()
    kept = _kept(spec, there, keep or Keep())
    ending = [i for i in there if i not in kept]
    for i in ending:
        ctx.emit(i.entered(Phase.TERMINATING))
    cost.record_running(ctx, spec.cluster_name, ending)
    await cluster.terminate(ending)
    cost.record_ended(ctx, spec.cluster_name, ending)
    wanted = {i.id for i in kept}
    left = [i for i in await cluster.instances() if i.id not in wanted]
    if left:
        raise TransientError(
            f"{len(left)} machines of {spec.cluster_name} are still there: "
            + ", ".join(i.name for i in left),
            why="they were asked to end, or were created meanwhile",
            fix="shoal down again finishes the job",
        )
    if not kept:
        await cluster.release()
    for i in ending:
        ctx.emit(i.entered(Phase.GONE))
    seconds = ctx.clock.monotonic() - began
    if kept:
        await _hand_over(ctx, cluster, kept, keep)
        ctx.emit(ClusterScaledDown(spec.cluster_name, len(ending), len(kept), seconds))
    else:
        _forget(ctx, spec.cluster_name)
        ctx.emit(ClusterGone(spec.cluster_name, len(ending), seconds))
    return DownResult(len(ending))


async def down_all(ctx: Context, keep: Keep | None = None) -> list[DownResult]:
    """Do so with every cluster known here. One that cannot be given back does not keep the others
    from it: what was in the way is told, and that something was is raised at the end."""
    results, failed = [], []
    for name in await cluster_lookup.names(ctx):
        try:
            results.append(await down(ctx, cluster_lookup.recall(ctx, name), keep))
        except ShoalError as error:
            failed.append(name)
            ctx.emit(Warned(f"{name}: {error.what}", error.why, error.fix, error.node))
    if failed:
        raise IncompleteError(
            f"could not give back {', '.join(failed)}",
            why="what was in the way is said above",
            fix="shoal down --all again, once it is not",
        )
    return results


async def _switch_off(ctx: Context, spec: ClusterSpec) -> DownResult:
    stopped = await stop_start.stop(ctx, spec)
    if stopped is None:
        return DownResult(None)
    ctx.emit(
        Warned(
            "the machines are switched off, not ended",
            why="; ".join(("shoal.down in the file is stop", *stopped.ongoing_costs)),
            fix="set shoal: {down: terminate} and shoal down again ends them for good",
        )
    )
    return DownResult(0)


async def _dismiss_controller(
    ctx: Context, cluster: ClusterHandle, instances: Sequence[Instance]
) -> None:
    """See to it that nobody launches machines while they are being ended, and keep what the head
    knows of those that are gone."""
    for instance in instances:
        if instance.role != "head" or instance.state is not State.RUNNING:
            continue
        try:
            if await client.stop_controller(cluster, instance):
                await cost.import_head_ledger(ctx, cluster, instance)
        except SetupError as error:  # it goes with its machine
            ctx.emit(Warned(error.what, error.why, error.fix, instance.name))


async def _hand_over(
    ctx: Context, cluster: ClusterHandle, kept: Sequence[Instance], keep: Keep | None
) -> None:
    """Leave what is kept to the controller again, unless it would at once bring back what was
    just ended: then `up` does, when it is wanted."""
    head = next((i for i in kept if i.role == "head"), None)
    if head is not None and keep is not None and keep.min_workers:
        await client.deploy_controller(ctx, cluster, head)


def _forget(ctx: Context, cluster: str) -> None:
    cluster_lookup.forget(ctx, cluster)
    ssh_config.remove(cluster, Path.home())


def _kept(spec: ClusterSpec, instances: Sequence[Instance], keep: Keep) -> list[Instance]:
    """What stays, the oldest workers first."""
    room = Counter({name: t.min_workers for name, t in spec.node_types.items()})
    kept = []
    for instance in sorted(instances, key=lambda i: i.created_at or 0.0):
        if instance.role == "head":
            if keep.head:
                kept.append(instance)
        elif keep.min_workers and room[instance.node_type] > 0:
            room[instance.node_type] -= 1
            kept.append(instance)
    return kept
