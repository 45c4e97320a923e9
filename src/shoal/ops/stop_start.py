"""Stops a cluster without giving it up, and brings it back without any setup: Ray ends, and where
machines can be switched off, they are."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.bootstrap import node_probe
from shoal.bootstrap.node_plan import Mode
from shoal.bootstrap.node_probe import NodeProbe
from shoal.bootstrap.pipeline import bootstrap_nodes
from shoal.bootstrap.status_tags import StatusTagger
from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.controller import client
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, IncompleteError, NotFoundError, TransientError
from shoal.core.events import ClusterStopped, PlanStep, Unchanged
from shoal.core.node_phase import Phase
from shoal.core.polling import PollUntilDeadline
from shoal.ops import cluster_lookup, cost
from shoal.ops.context import Context
from shoal.ops.up import announce_ready, incomplete
from shoal.ops.up_plan import spare_workers
from shoal.providers.model import Instance, State
from shoal.spec.cluster_spec import ClusterSpec

# How long a machine that was just asked for may take to be on.
_BOOT_SECONDS = 180.0
_PAUSE_SECONDS = 1.0
_ON = (State.PENDING, State.RUNNING)


async def stop(ctx: Context, spec: ClusterSpec) -> ClusterStopped | None:
    """End Ray on every machine, switch off those that can be, and write on the others that this
    was meant. None when the person said no. Raises `IncompleteError` when some cannot be
    reached."""
    began = ctx.clock.monotonic()
    cluster, observed = await _there(ctx, spec)
    name = spec.cluster_name
    silent = [i for i in observed.instances if i.state is State.UNREACHABLE]
    if client.has_controller(spec) and any(i.role == "head" for i in silent):
        raise _unreached(cluster, silent, "its head would start again what is stopped now")
    switches_off = cluster.capabilities.stops_instances
    if loses_head(observed.instances):
        raise ConfigError(
            f"cluster {name} cannot be stopped",
            why="its head is a spot machine, which can only be ended, and without it nothing "
            "could be started again",
            fix=f"shoal down {name}",
        )
    runs = {
        i.id
        for i in observed.instances
        if i.id in observed.probes and observed.probes[i.id].ray_runs
    }
    nodes = [i for i in observed.instances if i.state in _ON]
    stopping = nodes if switches_off else [i for i in nodes if i.id in runs]
    for instance in stopping:
        ctx.emit(_step(instance, switches_off=switches_off))
    if stopping and not ctx.confirm(f"Stop cluster {name}?"):
        return None
    for instance in nodes:
        # It would start what is stopped here.
        is_up = instance.role == "head" and instance.state is State.RUNNING
        if is_up and await client.stop_controller(cluster, instance):
            await cost.import_head_ledger(ctx, cluster, instance)
    # It may have launched machines while the question was being answered.
    there = await _settled(ctx, cluster) if switches_off else await cluster.instances()
    silent = [i for i in there if i.state is State.UNREACHABLE]
    nodes = [i for i in there if i.state is State.RUNNING]
    cost.record_running(ctx, name, nodes)
    for instance in nodes:
        ctx.emit(instance.entered(Phase.TERMINATING))
    # Also where nothing seems to run: a stop that was interrupted is finished here.
    costs = await cluster.stop(nodes)
    if not switches_off:
        await run_all(_write_stopped(cluster, i) for i in nodes)
    if switches_off:
        cost.record_ended(ctx, name, nodes)
    kept = [i for i in nodes if not (switches_off and i.market == "spot")]
    for instance in nodes:
        ctx.emit(instance.entered(Phase.STOPPED if instance in kept else Phase.GONE))
    seconds = ctx.clock.monotonic() - began
    stopped = ClusterStopped(name, len(kept), seconds, tuple(costs))
    ctx.emit(stopped)
    if silent:
        raise _unreached(cluster, silent, "Ray may still run there")
    return stopped


def loses_head(instances: Sequence[Instance]) -> bool:
    """Whether a cluster whose machines are switched off would be left without its head."""
    return any(i.role == "head" and i.market == "spot" and i.state in _ON for i in instances)


def _step(instance: Instance, *, switches_off: bool) -> PlanStep:
    if switches_off and instance.market == "spot":
        why = "a spot machine cannot be switched off, so it ends, with its disks"
        return PlanStep("terminate", instance.name, why)
    becomes = "its machine is switched off" if switches_off else "its machine stays"
    return PlanStep("stop", instance.name, becomes)


async def _settled(ctx: Context, cluster: ClusterHandle) -> Sequence[Instance]:
    """The cluster's machines, once none of them is still on its way up: such a one cannot be
    switched off."""
    coming: list[Instance] = []
    async for _ in PollUntilDeadline(ctx.clock, _BOOT_SECONDS, _PAUSE_SECONDS):
        found = await cluster.instances()
        coming = [i for i in found if i.state is State.PENDING]
        if not coming:
            return found
    raise TransientError(
        f"{', '.join(i.name for i in coming)} cannot be stopped yet",
        why=f"still on the way up after {_BOOT_SECONDS:.0f} s",
        fix="shoal stop again finishes the job",
    )


async def start(ctx: Context, spec: ClusterSpec) -> None:
    """Start Ray where it does not run. Raises `IncompleteError` when some nodes do not come
    up, or cannot be reached."""
    began = ctx.clock.monotonic()
    cluster, observed = await _there(ctx, spec)
    off = [i for i in observed.instances if i.state in (State.STOPPED, State.STOPPING)]
    if not any(i.role == "head" for i in off):
        spare = spare_workers(
            spec, observed.instances
        )  # the controller wakes them when it needs them
        off = [i for i in off if i not in spare]
    if off:
        for instance in off:
            ctx.emit(instance.entered(Phase.BOOTING))
        await cluster.provider.start(spec, off)
        observed = await cluster.observe()
    silent = [i for i in observed.instances if i.state is State.UNREACHABLE]
    known = [i for i in observed.instances if i.node_type in spec.node_types]
    nodes = [i for i in known if i.state is State.RUNNING]
    head = next((i for i in nodes if i.role == "head"), None)
    if head is None:
        raise _not_up(spec, "its head cannot be reached")
    cluster_lookup.remember(ctx, spec)
    cost.record_running(ctx, spec.cluster_name, nodes)
    modes = {i.id: _mode(observed.probes.get(i.id)) for i in nodes}
    asleep = [i for i in nodes if modes[i.id] is not None]
    if not asleep:
        await client.deploy_controller(ctx, cluster, head)
        if silent:
            raise _unreached(cluster, silent, "Ray runs on all others")
        ctx.emit(Unchanged(spec.cluster_name, "Ray runs on all of its nodes"))
        return
    head_starts = modes[head.id] in ("restart", "full")
    orphans = [i for i in nodes if i not in asleep] if head_starts else []
    for instance in asleep:
        knows = instance.id in observed.probes
        reason = "Ray is not running on it" if knows else "it did not say how it is"
        ctx.emit(PlanStep("start", instance.name, reason))
    for instance in orphans:
        ctx.emit(PlanStep("start", instance.name, "its head starts anew"))
    works = [cluster.node_plan(i, head, modes[i.id] or "restart") for i in (*asleep, *orphans)]
    head_work = next((w for w in works if w.instance is head), None) or cluster.node_plan(
        head, head
    )
    board = StatusTagger(cluster.provider, ctx.clock)
    async with client.controller_paused(cluster, [head]):
        await cluster.stop_ray(orphans)
        failures = await bootstrap_nodes(works, head_work, board.wrap(nodes, ctx.emit), ctx.clock)
        await board.flush()
        if head.name in failures:
            raise incomplete(failures, len(nodes))
        await client.deploy_controller(ctx, cluster, head)
    if failures:
        raise incomplete(failures, len(nodes))
    announce_ready(ctx, spec, head_work.start, nodes=len(nodes), began=began)
    if silent:
        raise _unreached(cluster, silent, "Ray runs on all others")


def _mode(vitals: NodeProbe | None) -> Mode | None:
    """How much is to be done on a machine so that its Ray runs; None where it does."""
    if vitals is None:
        return "update"  # it may have to boot first, and is asked again then
    if vitals.ray_runs:
        return None
    # What was never set up is, since nothing could start there.
    return "restart" if vitals.applied_state.setup else "full"


async def _there(ctx: Context, spec: ClusterSpec) -> tuple[ClusterHandle, ObservedCluster]:
    cluster = ClusterHandle.of(ctx, spec)
    observed = await cluster.observe()
    if not observed.instances:
        raise _not_up(spec, "it has no machines")
    return cluster, observed


async def _write_stopped(cluster: ClusterHandle, instance: Instance) -> None:
    container = cluster.spec.container_for(instance.node_type, instance.role)
    await node_probe.mark_stopped(cluster.runner(instance), instance, container)


def _unreached(cluster: ClusterHandle, silent: Sequence[Instance], meaning: str) -> IncompleteError:
    names = ", ".join(f"{i.name} ({i.address})" for i in silent)
    unreachable_reasons = cluster.capabilities.unreachable_reasons
    troubles = unreachable_reasons() if unreachable_reasons else {}
    reasons = [f"{meaning}: {troubles[i.id].what}" for i in silent if i.id in troubles]
    return IncompleteError(
        f"{names} cannot be reached",
        why=reasons[0] if reasons else meaning,
        fix="the same command again, once that is mended, finishes the job",
    )


def _not_up(spec: ClusterSpec, why: str) -> NotFoundError:
    return NotFoundError(f"cluster {spec.cluster_name} is not up", why=why, fix="shoal up")
