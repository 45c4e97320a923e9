"""Terminates a cluster. It needs no local state, and finishes what an interrupted run began."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal import providers
from shoal.cluster.handle import ClusterHandle
from shoal.controller import client
from shoal.core.errors import IncompleteError, SetupError, ShoalError, TransientError
from shoal.core.events import ClusterGone, ClusterScaledDown, PlanStep, Stage, Unchanged, Warned
from shoal.core.node_phase import Phase
from shoal.ops import cost, images, known_clusters, ssh_config, stop_start
from shoal.ops.cluster_locks import down_mark
from shoal.ops.context import Context, Severity
from shoal.ops.running_work import describe_running_work
from shoal.providers.model import Instance, State, head_of
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DownResult:
    """How many instances were terminated; None when the user declined."""

    terminated: int | None


@dataclass(frozen=True)
class Keep:
    """What is not terminated: the head, and as many workers of each type as min_workers. Workers
    without a head are no cluster, so `min_workers` keeps the head too."""

    head: bool = False
    min_workers: bool = False


async def down(
    ctx: Context, spec: ClusterSpec, keep: Keep | None = None, *, keeps_images: bool = True
) -> DownResult:
    """Terminate the cluster's instances, and wait until the provider confirms it. With
    `shoal.down: stop` in the file they are stopped instead, and the remaining costs reported.
    Baked images stay; with `keeps_images` that is reported."""
    started_at = ctx.clock.monotonic()
    cluster = ClusterHandle(providers.provider_for(spec, ctx.home, ctx.clock, ctx.emit), spec)
    instances = await cluster.instances()
    if instances and spec.shoal.down == "stop" and keep in (None, Keep()):
        if not stop_start.loses_head(instances):
            return await _stop_instead(ctx, spec)
        why = "shoal.down is stop in the file, but a spot instance (the head) cannot be stopped"
        ctx.emit(Warned("the instances are terminated, not stopped", why))
    kept = _kept(spec, instances, keep or Keep())
    surplus = [i for i in instances if i not in kept]
    if not instances:
        if removed := await cluster.release():
            ctx.emit(Stage(f"deleted leftovers: {', '.join(removed)}"))
        await _down_failed_attempt(ctx, spec)
        _forget(ctx, spec)
        if keeps_images:
            await images.report_kept(ctx, cluster)
    if not surplus:
        ctx.emit(Unchanged(spec.cluster_name, "there are no nodes to terminate"))
        return DownResult(0)
    for i in surplus:
        ctx.emit(PlanStep("terminate", i.name, f"{i.node_type}, {i.address}"))
    what = f"{len(surplus)} of the {len(instances)} nodes of" if kept else "all nodes of"
    question = f"Terminate {what} cluster {spec.cluster_name}?"
    question = await describe_running_work(ctx, cluster, surplus) + question
    if not ctx.confirm(question, Severity.DESTRUCTIVE):
        return DownResult(None)

    with down_mark(ctx, spec.cluster_name):
        result = await _terminate(ctx, cluster, keep, started_at)
    if keeps_images and not kept:
        await images.report_kept(ctx, cluster)
    return result


async def _terminate(
    ctx: Context, cluster: ClusterHandle, keep: Keep | None, started_at: float
) -> DownResult:
    spec = cluster.spec
    await _stop_controller(ctx, cluster, await cluster.instances())
    # The controller may have launched instances while the user was asked.
    instances = await cluster.instances()
    kept = _kept(spec, instances, keep or Keep())
    surplus = [i for i in instances if i not in kept]
    for i in surplus:
        ctx.emit(i.entered(Phase.TERMINATING))
    cost.record_running(ctx, spec.cluster_name, surplus)
    await cluster.terminate(surplus)
    cost.record_ended(ctx, spec.cluster_name, surplus)
    kept_ids = {i.id for i in kept}
    remaining = [i for i in await cluster.instances() if i.id not in kept_ids]
    if remaining:
        raise TransientError(
            f"{len(remaining)} instances of {spec.cluster_name} still exist: "
            + ", ".join(i.name for i in remaining),
            why="they are still terminating, or were launched meanwhile",
            fix="shoal down CLUSTER",
        )
    if not kept:
        await cluster.release()
    for i in surplus:
        ctx.emit(i.entered(Phase.GONE))
    seconds = ctx.clock.monotonic() - started_at
    if kept:
        await _redeploy_controller(ctx, cluster, kept, keep)
        ctx.emit(ClusterScaledDown(spec.cluster_name, len(surplus), len(kept), seconds))
    else:
        await _down_failed_attempt(ctx, spec)
        _forget(ctx, spec)
        ctx.emit(ClusterGone(spec.cluster_name, len(surplus), seconds))
    return DownResult(len(surplus))


async def down_all(ctx: Context, keep: Keep | None = None) -> list[DownResult]:
    """Terminate every known cluster. If one fails, the others are still terminated, and
    `IncompleteError` is raised at the end."""
    results, failed = [], []
    for name in await known_clusters.known_names(ctx):
        try:
            results.append(await down(ctx, known_clusters.load_recorded(ctx, name), keep))
        except ShoalError as error:
            failed.append(name)
            ctx.emit(Warned(f"{name}: {error.what}", error.why, error.fix, error.node))
    if failed:
        raise IncompleteError(
            f"could not terminate {', '.join(failed)}",
            why="the warnings above give the reasons",
            fix="fix the causes\nshoal down --all",
        )
    return results


async def _stop_instead(ctx: Context, spec: ClusterSpec) -> DownResult:
    stopped = await stop_start.stop(ctx, spec)
    if stopped is None:
        return DownResult(None)
    ctx.emit(
        Warned(
            "the instances are stopped, not terminated",
            why="; ".join(("shoal.down is stop in the file", *stopped.ongoing_costs)),
            fix="to terminate them, set shoal: {down: terminate} in the file and pass it to "
            "shoal down",
        )
    )
    return DownResult(0)


async def _stop_controller(
    ctx: Context, cluster: ClusterHandle, instances: Sequence[Instance]
) -> None:
    """Stop the controller, so that it launches no replacements, and copy its cost ledger."""
    for instance in instances:
        if instance.role != "head" or instance.state is not State.RUNNING:
            continue
        try:
            if cluster.capabilities.controller_launches_workers:
                _warn_of_forgotten(ctx, await client.terminate_workers(cluster, instance))
            if await client.stop_controller(cluster, instance):
                await cost.import_head_ledger(ctx, cluster, instance)
        except SetupError as error:
            if _only_head_knows_workers(cluster):
                raise
            # The controller ends with its instance.
            ctx.emit(Warned(error.what, error.why, error.fix, instance.name))


def _warn_of_forgotten(ctx: Context, workers: Sequence[str]) -> None:
    if workers:
        ctx.emit(
            Warned(
                f"the provider no longer knows {', '.join(workers)}",
                why="it does not list them after a restart, so they may run on",
                fix="check in the cloud's console, or on the head, that they are gone",
            )
        )


def _only_head_knows_workers(cluster: ClusterHandle) -> bool:
    """Whether this machine cannot list the workers, which would be left without their head."""
    capabilities = cluster.capabilities
    return capabilities.controller_launches_workers and capabilities.fixed_head is not None


async def _redeploy_controller(
    ctx: Context, cluster: ClusterHandle, kept: Sequence[Instance], keep: Keep | None
) -> None:
    """Start the controller again on what is kept. If the min_workers were terminated, it must not
    relaunch them at once: they count again from the next `up` on."""
    head = head_of(kept)
    if head is None:
        return
    if keep is None or not keep.min_workers:
        _log.info("the controller ignores min_workers until the next up")
        cluster = ClusterHandle(cluster.provider, _without_minimum(cluster.spec))
    try:
        await client.deploy_controller(cluster, head, emit=ctx.emit, home=ctx.home)
    except IncompleteError as error:
        ctx.emit(Warned(error.what, error.why, error.fix, error.node))


def _without_minimum(spec: ClusterSpec) -> ClusterSpec:
    types = {name: replace(t, min_workers=0) for name, t in spec.node_types.items()}
    return replace(spec, node_types=types, scaling=replace(spec.scaling, initial_workers=None))


async def _down_failed_attempt(ctx: Context, spec: ClusterSpec) -> None:
    """Terminate what a later `up` of this cluster with other settings used before it failed."""
    attempt = known_clusters.failed_attempt(ctx, spec)
    if attempt is None:
        return
    try:
        instances = await ClusterHandle.of(ctx, attempt).instances()
        if any(i.state is not State.UNREACHABLE for i in instances):
            await down(ctx, attempt)
    except ShoalError as error:
        what = f"could not terminate what a failed up of {spec.cluster_name} used: {error.what}"
        fix = "shoal down with the file of that up"
        ctx.emit(Warned(what, error.why, error.fix or fix, error.node))


def _forget(ctx: Context, spec: ClusterSpec) -> None:
    known_clusters.forget(ctx, spec)
    ssh_config.remove(spec.cluster_name, Path.home())


def _kept(spec: ClusterSpec, instances: Sequence[Instance], keep: Keep) -> list[Instance]:
    """The instances to keep, preferring reachable and then the oldest workers."""
    remaining = Counter({name: t.min_workers for name, t in spec.node_types.items()})
    kept = []
    order = sorted(instances, key=lambda i: (i.state is State.UNREACHABLE, i.created_at or 0.0))
    for instance in order:
        if instance.role == "head":
            if keep.head or keep.min_workers:
                kept.append(instance)
        elif keep.min_workers and remaining[instance.node_type] > 0:
            remaining[instance.node_type] -= 1
            kept.append(instance)
    return kept
