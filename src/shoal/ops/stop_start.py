"""Stops Ray on a cluster, and the instances too where the provider can stop them, and starts both
again without repeating the setup."""

from __future__ import annotations

import logging
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
from shoal.ops import cost, known_clusters
from shoal.ops.context import Context, Severity
from shoal.ops.running_work import describe_running_work
from shoal.ops.up_outcome import announce_ready, incomplete
from shoal.ops.up_plan import spare_workers
from shoal.ops.verification import verify_nodes
from shoal.providers.model import Instance, State, head_of
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# How long a pending instance may take to run: only a running instance can be stopped.
_BOOT_SECONDS = 180.0
_POLL_SECONDS = 1.0
_BILLED = (State.PENDING, State.RUNNING)


async def stop(ctx: Context, spec: ClusterSpec) -> ClusterStopped | None:
    """Stop Ray on every node and, on AWS, stop the instances; elsewhere, record on each machine
    that Ray was stopped on purpose. None when the user declined. Raises `IncompleteError` when
    nodes are unreachable."""
    started_at = ctx.clock.monotonic()
    cluster, observed = await _observe(ctx, spec)
    name = spec.cluster_name
    unreachable = [i for i in observed.instances if i.state is State.UNREACHABLE]
    if client.has_controller(spec) and any(i.role == "head" for i in unreachable):
        why = "the controller on the unreachable head would restart the stopped nodes"
        raise _unreachable_error(cluster, unreachable, why)
    stops_instances = cluster.capabilities.stops_instances
    if loses_head(observed.instances):
        raise ConfigError(
            f"cluster {name} cannot be stopped",
            why="its head is a spot instance, which can only be terminated, and without a head "
            "the cluster cannot be started again",
            fix="shoal down CLUSTER",
        )
    runs = {
        i.id
        for i in observed.instances
        if i.id in observed.probes and observed.probes[i.id].ray_runs
    }
    nodes = [i for i in observed.instances if i.state in _BILLED]
    stopping = nodes if stops_instances else [i for i in nodes if i.id in runs]
    for instance in stopping:
        ctx.emit(_step(instance, stops_instances=stops_instances))
    if stopping:
        lost = await describe_running_work(ctx, cluster, stopping)
        if not ctx.confirm(f"{lost}Stop cluster {name}?", Severity.DESTRUCTIVE):
            return None
    for instance in nodes:
        # The controller would restart the stopped nodes.
        is_up = instance.role == "head" and instance.state is State.RUNNING
        if is_up and await client.stop_controller(cluster, instance):
            await cost.import_head_ledger(ctx, cluster, instance)
            _log.info("stopped the controller on %s", instance.name)
    # The controller may have launched instances while the user was asked.
    if stops_instances:
        instances = await _wait_until_none_pending(ctx, cluster)
    else:
        instances = await cluster.instances()
    unreachable = [i for i in instances if i.state is State.UNREACHABLE]
    nodes = [i for i in instances if i.state is State.RUNNING]
    cost.record_running(ctx, name, nodes)
    for instance in nodes:
        ctx.emit(instance.entered(Phase.TERMINATING))
    # Even if nothing seems to run: this finishes an interrupted stop.
    remaining_costs = await cluster.stop(nodes)
    if not stops_instances:
        await run_all(_record_stopped(cluster, i) for i in nodes)
    if stops_instances:
        cost.record_ended(ctx, name, nodes)
    kept = [i for i in nodes if not (stops_instances and i.market == "spot")]
    for instance in nodes:
        ctx.emit(instance.entered(Phase.STOPPED if instance in kept else Phase.GONE))
    seconds = ctx.clock.monotonic() - started_at
    stopped = ClusterStopped(name, len(kept), seconds, tuple(remaining_costs))
    ctx.emit(stopped)
    if unreachable:
        raise _unreachable_error(cluster, unreachable, "Ray may still be running there")
    return stopped


def loses_head(instances: Sequence[Instance]) -> bool:
    """Whether stopping the instances would terminate the head, as a spot instance is."""
    return any(i.role == "head" and i.market == "spot" and i.state in _BILLED for i in instances)


def _step(instance: Instance, *, stops_instances: bool) -> PlanStep:
    if stops_instances and instance.market == "spot":
        why = "a spot instance cannot be stopped: it is terminated with its disks"
        return PlanStep("terminate", instance.name, why)
    effect = (
        "Ray and the instance stop" if stops_instances else "Ray stops, the machine keeps running"
    )
    return PlanStep("stop", instance.name, effect)


async def _wait_until_none_pending(ctx: Context, cluster: ClusterHandle) -> Sequence[Instance]:
    """The cluster's instances, once none is pending: a pending instance cannot be stopped."""
    pending: list[Instance] = []
    async for _ in PollUntilDeadline(ctx.clock, _BOOT_SECONDS, _POLL_SECONDS):
        instances = await cluster.instances()
        pending = [i for i in instances if i.state is State.PENDING]
        if not pending:
            return instances
    raise TransientError(
        f"{', '.join(i.name for i in pending)} cannot be stopped yet",
        why=f"still pending after {_BOOT_SECONDS:.0f} s",
        fix="shoal stop CLUSTER",
    )


async def start(ctx: Context, spec: ClusterSpec) -> None:
    """Start stopped instances, and Ray where it is not running. Raises `IncompleteError` when
    nodes fail to start or are unreachable."""
    started_at = ctx.clock.monotonic()
    cluster, observed = await _observe(ctx, spec)
    stopped = [i for i in observed.instances if i.state in (State.STOPPED, State.STOPPING)]
    if not any(i.role == "head" for i in stopped):
        # The controller starts spare workers when it needs them.
        spares = spare_workers(spec, observed.instances)
        stopped = [i for i in stopped if i not in spares]
    if stopped:
        for instance in stopped:
            ctx.emit(instance.entered(Phase.BOOTING))
        await cluster.provider.start(spec, stopped)
        observed = await cluster.observe()
    unreachable = [i for i in observed.instances if i.state is State.UNREACHABLE]
    known = [i for i in observed.instances if i.node_type in spec.node_types]
    nodes = [i for i in known if i.state is State.RUNNING]
    head = head_of(nodes)
    if head is None:
        raise _not_up(spec, "its head is unreachable")
    known_clusters.record(ctx, spec)
    cost.record_running(ctx, spec.cluster_name, nodes)
    modes = {i.id: _mode(observed.probes.get(i.id)) for i in nodes}
    without_ray = [i for i in nodes if modes[i.id] is not None]
    if not without_ray:
        report = await client.deploy_controller(cluster, head, emit=ctx.emit, home=ctx.home)
        await verify_nodes(ctx, cluster, head, nodes, report)
        if unreachable:
            raise _unreachable_error(cluster, unreachable, "Ray is running on all other nodes")
        ctx.emit(Unchanged(spec.cluster_name, "Ray is running on all nodes"))
        return
    head_starts = modes[head.id] in ("restart", "full")
    # Workers of a head that restarts must restart as well.
    orphans = [i for i in nodes if i not in without_ray] if head_starts else []
    for instance in without_ray:
        is_probed = instance.id in observed.probes
        reason = "Ray is not running on it" if is_probed else "could not read its state"
        ctx.emit(PlanStep("start", instance.name, reason))
    for instance in orphans:
        ctx.emit(PlanStep("start", instance.name, "its head restarts"))
    node_plans = [
        cluster.node_plan(i, head, modes[i.id] or "restart") for i in (*without_ray, *orphans)
    ]
    head_plan = next((p for p in node_plans if p.instance is head), None)
    head_plan = head_plan or cluster.node_plan(head, head)
    tagger = StatusTagger(cluster.provider, ctx.clock)
    async with client.controller_paused(cluster, [head]):
        await cluster.stop_ray(orphans)
        emit = tagger.wrap(nodes, ctx.emit)
        failures = await bootstrap_nodes(node_plans, head_plan, emit, ctx.clock)
        await tagger.flush()
        if head.name in failures:
            raise incomplete(failures, len(nodes))
        report = await client.deploy_controller(cluster, head, emit=ctx.emit, home=ctx.home)
    if failures:
        raise incomplete(failures, len(nodes))
    await verify_nodes(ctx, cluster, head, nodes, report)
    announce_ready(ctx, spec, head_plan.start, nodes=len(nodes), started_at=started_at)
    if unreachable:
        raise _unreachable_error(cluster, unreachable, "Ray is running on all other nodes")


def _mode(probe: NodeProbe | None) -> Mode | None:
    """How much of the bootstrap a node needs before Ray runs on it; None if it runs already."""
    if probe is None:
        return "update"  # it may still boot, and is probed again during the update
    if probe.ray_runs:
        return None
    # A node that was never set up cannot just restart.
    return "restart" if probe.applied_state.setup else "full"


async def _observe(ctx: Context, spec: ClusterSpec) -> tuple[ClusterHandle, ObservedCluster]:
    cluster = ClusterHandle.of(ctx, spec)
    observed = await cluster.observe()
    if not observed.instances:
        raise _not_up(spec, "it has no instances")
    return cluster, observed


async def _record_stopped(cluster: ClusterHandle, instance: Instance) -> None:
    container = cluster.spec.container_for(instance.node_type, instance.role)
    await node_probe.mark_stopped(cluster.runner(instance), instance, container)


def _unreachable_error(
    cluster: ClusterHandle, unreachable: Sequence[Instance], consequence: str
) -> IncompleteError:
    names = ", ".join(f"{i.name} ({i.address})" for i in unreachable)
    unreachable_reasons = cluster.capabilities.unreachable_reasons
    errors = unreachable_reasons() if unreachable_reasons else {}
    reasons = [f"{consequence}: {errors[i.id].what}" for i in unreachable if i.id in errors]
    return IncompleteError(
        f"unreachable: {names}",
        why=reasons[0] if reasons else consequence,
        fix="fix the connection, then run the same command again to finish",
    )


def _not_up(spec: ClusterSpec, why: str) -> NotFoundError:
    return NotFoundError(f"cluster {spec.cluster_name} is not up", why=why, fix="shoal up CLUSTER")
