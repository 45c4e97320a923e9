"""Brings a cluster to what its file says. It is idempotent: another run finishes what an
interrupted run began, and does nothing when nothing is left to do."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from shoal.bootstrap.pipeline import Failures, bootstrap_nodes
from shoal.bootstrap.status_tags import StatusTagger
from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.controller import client
from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, IncompleteError, SetupError, ShoalError, UnreachableError
from shoal.core.events import (
    Event,
    LaunchAttempted,
    SettingsApplied,
    Stage,
    Unchanged,
    Warned,
)
from shoal.core.node_phase import Phase
from shoal.ops import cluster_locks, cost, known_clusters, up_flags
from shoal.ops.context import Context, Severity
from shoal.ops.head_restart import wait_for_head_restart, was_head_lost
from shoal.ops.launch_errors import could_not_launch, still_running
from shoal.ops.preview import UpPreview, preview_up
from shoal.ops.running_work import describe_running_work
from shoal.ops.up_flags import UpFlags
from shoal.ops.up_outcome import announce_ready, incomplete, outdated_warning
from shoal.ops.up_plan import ABSENT_STATES, RestartPolicy, UpPlan, plan_up
from shoal.ops.verification import verify_environment, verify_nodes, wait_for_min_workers
from shoal.providers.model import Instance, State, head_of
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.loading import SourceOf, unknown_source

_log = logging.getLogger(__name__)

# How often instances that are terminated while they boot are replaced.
_REPLACEMENT_ROUNDS = 2


@dataclass(frozen=True)
class UpResult:
    """The plan that `up` executed: empty when there was nothing to do, None when the user
    declined it."""

    plan: UpPlan | None
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class UpOptions:
    """What `up` may restart, and whether it may use machines that another cluster has claimed.
    `source_of` maps settings to lines of the file, for findings. The errors of `skip_checks`, names
    of preflight checks, are only warnings. `flags` are the options that are
    in force in the spec; None leaves the recorded ones as they are."""

    restart: RestartPolicy = "as needed"
    force: bool = False
    source_of: SourceOf = unknown_source
    flags: UpFlags | None = None
    skip_checks: tuple[str, ...] = ()


async def up(ctx: Context, spec: ClusterSpec, options: UpOptions | None = None) -> UpResult:
    """Bring the cluster to what `spec` says. Raises `ConfigError` before anything is changed when
    a preflight check fails, and `IncompleteError` when nodes are missing at the end. Another `up`
    of the cluster on this machine is waited for."""
    options = options or UpOptions()
    async with cluster_locks.up_lock(ctx, spec.cluster_name):
        if options.flags:
            ctx.emit(Stage(f"in force: {up_flags.describe(options.flags)}"))
        return await _up(ctx, spec, options)


async def _up(ctx: Context, spec: ClusterSpec, options: UpOptions) -> UpResult:
    started_at = ctx.clock.monotonic()
    launch_errors: list[str] = []
    launched: list[LaunchAttempted] = []

    def emit(event: Event) -> None:
        if isinstance(event, LaunchAttempted) and event.error:
            launch_errors.append(f"{event.instance_type} in {event.zone}: {event.error}")
        elif isinstance(event, LaunchAttempted):
            launched.append(event)
        ctx.emit(event)

    cluster = ClusterHandle.of(replace(ctx, emit=emit), spec, force=options.force)
    spec = cluster.spec

    async def preview_now() -> UpPreview:
        skipped = options.skip_checks
        return await preview_up(ctx, cluster, options.source_of, options.restart, skipped)

    preview = await preview_now()
    if await wait_for_head_restart(ctx, cluster, preview.observed):
        preview = await preview_now()
    observed, plan = preview.observed, preview.plan
    if options.restart == "never" and client.has_controller(spec):
        plan = plan.without_terminations()
    if plan.outdated:
        ctx.emit(outdated_warning(plan.outdated))
    preview = replace(preview, plan=plan)
    if plan.is_empty:
        await _apply_settings(ctx, cluster, preview, options)
        return UpResult(plan, tuple(observed.instances))
    preview.show(ctx.emit)
    if not await _confirmed(ctx, cluster, preview):
        return UpResult(None)

    for step in plan.steps:
        _log.info("%s %s: %s", step.action, step.subject, step.reason)
    known_clusters.record_attempt(ctx, spec)
    _record_flags(ctx, spec, options)
    heads = [i for i in observed.instances if i.role == "head" and i.state is State.RUNNING]
    problem, report = None, None
    try:
        async with client.controller_paused(cluster, heads):
            result = await _bring_up(ctx, cluster, observed, plan, options)
            known_clusters.record(ctx, spec)
            try:
                report = await client.deploy_controller(
                    cluster,
                    result.head,
                    emit=ctx.emit,
                    home=ctx.home,
                    is_installed=result.is_prepared,
                )
            except IncompleteError as error:
                problem = error
    except (SetupError, IncompleteError) as error:
        if _is_terminated(ctx, spec):
            raise _terminated(spec) from error
        raise
    except AuthError as error:
        raise still_running(error, launched) from error
    total = len(result.nodes)
    if problem is not None and (result.failures or result.missing > 0):
        ctx.emit(Warned(problem.what, problem.why, problem.fix, problem.node))
    if result.failures:
        raise incomplete(result.failures, total)
    if result.missing > 0:
        raise could_not_launch(result.missing, total, launch_errors)
    if problem is not None:
        raise problem
    await verify_nodes(ctx, cluster, result.head, result.nodes, report)
    if report is not None:
        total = max(total, 1 + await wait_for_min_workers(ctx, cluster, result.head))
    start = cluster.node_plan(result.head, result.head).start
    announce_ready(ctx, spec, start, nodes=total, started_at=started_at)
    return UpResult(plan, result.nodes)


async def _bring_up(
    ctx: Context,
    cluster: ClusterHandle,
    observed: ObservedCluster,
    plan: UpPlan,
    options: UpOptions,
) -> _Result:
    """Execute the plan, and replace instances that are lost meanwhile."""
    spec = cluster.spec
    policy: RestartPolicy = "never" if options.restart == "never" else "as needed"

    async def plan_again() -> None:
        # The user has not confirmed this plan, so nothing is terminated in it.
        nonlocal observed, plan
        observed = await cluster.observe()
        plan = plan_up(spec, observed, policy).without_terminations()

    if await was_head_lost(cluster, observed, {u.instance.id for u in plan.updates}):
        _log.info("the head's Ray has ended since the cluster was observed: planning again")
        await plan_again()
    result = await _execute(ctx, cluster, observed, plan)
    for _ in range(_REPLACEMENT_ROUNDS):
        if _is_terminated(ctx, spec) or not await _lost_instances(ctx, cluster, result):
            break
        _log.info("instances were lost during bootstrap: planning again")
        await plan_again()
        result = await _execute(ctx, cluster, observed, plan)
    if _is_terminated(ctx, spec):
        raise _terminated(spec)
    if result.head.name in result.failures:
        raise incomplete(result.failures, len(result.nodes))
    return result


def _is_terminated(ctx: Context, spec: ClusterSpec) -> bool:
    """Whether another command on this machine terminates the cluster, or has done so since this
    one recorded it."""
    name = spec.cluster_name
    return cluster_locks.is_terminating(ctx, name) or not known_clusters.is_recorded(ctx, name)


def _terminated(spec: ClusterSpec) -> ShoalError:
    return IncompleteError(
        f"cluster {spec.cluster_name} was terminated while it came up",
        why="another command, such as shoal down, terminated it",
        fix="bring it up again: shoal up CLUSTER",
    )


async def _apply_settings(
    ctx: Context, cluster: ClusterHandle, preview: UpPreview, options: UpOptions
) -> None:
    """Give the spec to the controller of a cluster on which no node needs a change, and say what
    that changes."""
    plan, spec = preview.plan, cluster.spec
    head = head_of(preview.observed.instances)
    assert head is not None
    preview.show(ctx.emit)
    known_clusters.record(ctx, spec)
    _record_flags(ctx, spec, options)
    verification = asyncio.ensure_future(verify_environment(cluster, head))
    try:
        report = await client.deploy_controller(cluster, head, emit=ctx.emit, home=ctx.home)
    finally:
        await verification  # the cause, if both fail
    leaving = {i.id for i in plan.drain}
    observed = preview.observed
    nodes = [i for i in observed.instances if i.id in observed.probes and i.id not in leaving]
    await verify_nodes(ctx, cluster, head, nodes, report)
    if report is not None:
        await wait_for_min_workers(ctx, cluster, head)
    if preview.is_empty:
        state = "the cluster is up" if plan.outdated else "the cluster is up and matches its file"
        ctx.emit(Unchanged(spec.cluster_name, state))
        return
    draining = [f"{i.name} is terminated once it is idle" for i in plan.drain]
    ctx.emit(SettingsApplied(spec.cluster_name, (*preview.settings, *draining)))


async def _confirmed(ctx: Context, cluster: ClusterHandle, preview: UpPreview) -> bool:
    """Ask for confirmation of what costs money or interrupts work."""
    plan, question = preview.plan, f"Bring up cluster {cluster.name}?"
    if plan.is_disruptive:
        stopped = [*plan.terminate, *(u.instance for u in plan.updates if u.stops_ray)]
        lost = await describe_running_work(ctx, cluster, stopped)
        return ctx.confirm(f"{lost}{question}", Severity.DESTRUCTIVE)
    return not cluster.capabilities.costs_money or ctx.confirm(question)


def _record_flags(ctx: Context, spec: ClusterSpec, options: UpOptions) -> None:
    if options.flags is not None:
        up_flags.record(ctx, spec.cluster_name, options.flags)


@dataclass(frozen=True)
class _Result:
    """The outcome of executing a plan: the nodes, the errors of those that failed, how many
    instances could not be launched, and whether the controller is prepared on the head."""

    head: Instance
    nodes: tuple[Instance, ...]
    failures: Failures
    missing: int
    is_prepared: bool


async def _execute(
    ctx: Context, cluster: ClusterHandle, observed: ObservedCluster, plan: UpPlan
) -> _Result:
    launched, started = await _change_instances(ctx, cluster, plan)
    gone = {i.id for i in (*plan.terminate, *plan.drain, *plan.spare, *launched)}
    kept = [
        started.get(i.id, i)
        for i in observed.instances
        if i.id not in gone and i.state not in ABSENT_STATES
    ]
    head = head_of((*kept, *launched))
    assert head is not None
    node_plans = [
        *(
            cluster.node_plan(
                started.get(update.instance.id, update.instance),
                head,
                update.mode,
                stops_ray=update.stops_ray,
            )
            for update in plan.updates
        ),
        *(cluster.node_plan(instance, head) for instance in launched),
    ]
    head_plan = next((p for p in node_plans if p.instance is head), None)
    head_plan = head_plan or cluster.node_plan(head, head)
    tagger = StatusTagger(cluster.provider, ctx.clock)
    emit = tagger.wrap([node_plan.instance for node_plan in node_plans], ctx.emit)
    is_prepared = False

    async def prepare_controller() -> None:
        nonlocal is_prepared
        is_prepared = await client.prepare_controller(
            cluster, head, home=ctx.home, bootstrapping=[plan.instance.id for plan in node_plans]
        )

    failures = await bootstrap_nodes(
        node_plans, head_plan, emit, ctx.clock, on_ray_runs=prepare_controller
    )
    if cluster.capabilities.disconnect is not None:
        failed = [p.instance for p in node_plans if p.instance.name in failures]
        await cluster.capabilities.disconnect(failed)
    await tagger.flush()
    return _Result(
        head=head,
        nodes=(*kept, *launched),
        failures=failures,
        missing=sum(launch.count for launch in plan.launches) - len(launched),
        is_prepared=is_prepared,
    )


async def _lost_instances(ctx: Context, cluster: ClusterHandle, result: _Result) -> bool:
    """Whether instances were terminated during their bootstrap, and need a replacement."""
    unreachable = [
        (node, error)
        for node in result.nodes
        if isinstance(error := result.failures.get(node.name), UnreachableError)
    ]
    if not unreachable:
        return False
    states = {i.id: i.state for i in await cluster.instances()}
    lost = [
        (node, error)
        for node, error in unreachable
        if states.get(node.id, State.TERMINATED) in (State.TERMINATING, State.TERMINATED)
    ]
    for node, error in lost:
        what = "its instance was terminated; launching a replacement"
        ctx.emit(Warned(what, error.why, node=node.name))
    return bool(lost)


async def _change_instances(
    ctx: Context, cluster: ClusterHandle, plan: UpPlan
) -> tuple[list[Instance], dict[str, Instance]]:
    """Terminate surplus instances, start stopped instances and launch missing ones, in parallel. A
    Ray that restarts is stopped by bootstrap, once everything else is prepared. Replaced instances
    are terminated before their successors are launched: the quota may have room for only one of
    them, and two heads would look like two concurrent `up` runs. Returns the launched instances,
    and the started ones by id."""
    for instance in plan.terminate:
        ctx.emit(instance.entered(Phase.TERMINATING))
    updated = [update.instance for update in plan.updates]
    stopped = [i for i in updated if i.state in (State.STOPPED, State.STOPPING)]
    surplus = [i for i in plan.terminate if i not in plan.replaced]
    launched: list[Instance] = []
    started: dict[str, Instance] = {}

    async def replace_and_launch() -> None:
        await cluster.terminate(plan.replaced)
        launched.extend(await cluster.launch(plan.launches))

    async def start() -> None:
        started.update({i.id: i for i in await cluster.provider.start(cluster.spec, stopped)})

    await run_all(
        [
            replace_and_launch(),
            start(),
            cluster.terminate(surplus),
        ]
    )
    name = cluster.spec.cluster_name
    cost.record_running(ctx, name, [*launched, *started.values()])
    cost.record_ended(ctx, name, plan.terminate)
    for instance in plan.terminate:
        ctx.emit(instance.entered(Phase.GONE))
    for instance in launched:
        ctx.emit(instance.entered(Phase.BOOTING))
    return launched, started
