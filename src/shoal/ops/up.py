"""Brings a cluster up, or brings it to what its file says now. Repeating it does no harm:
it finishes what an interrupted run began, and does nothing when nothing is left to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.bootstrap.pipeline import Failures, bootstrap_nodes
from shoal.bootstrap.status_tags import StatusTagger
from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.controller import client
from shoal.core.concurrency import run_all
from shoal.core.errors import IncompleteError, ShoalError, UnreachableError
from shoal.core.events import ClusterReady, Event, LaunchAttempted, Unchanged, Warned
from shoal.core.node_phase import Phase
from shoal.ops import cluster_lookup, cost
from shoal.ops.context import Context
from shoal.ops.preview import preview_up
from shoal.ops.up_plan import NOT_THERE, RestartPolicy, UpPlan, plan_up
from shoal.providers import provider_for
from shoal.providers.model import Instance, State
from shoal.ray_runtime.ray_env import source_command
from shoal.ray_runtime.ray_start import RayStart
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.loading import SourceOf, unknown_source

# How often machines that are taken away while they boot are asked for again.
_REFILLS = 2


@dataclass(frozen=True)
class UpResult:
    """How `up` ended: the plan it carried out (empty when there was nothing to do, none when
    the person said no)."""

    plan: UpPlan | None
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class UpOptions:
    """How `up` goes about it: what it may restart, and whether it may take a machine from
    another cluster. `source_of` finds the line of the file that an error is about."""

    restart: RestartPolicy = "as needed"
    force: bool = False
    source_of: SourceOf = unknown_source


async def up(ctx: Context, spec: ClusterSpec, options: UpOptions | None = None) -> UpResult:
    """Make the cluster what `spec` says. Raises `IncompleteError` when some nodes are missing
    at the end, `ConfigError` before anything is touched when it could not have worked."""
    began = ctx.clock.monotonic()
    options = options or UpOptions()
    refusals: list[str] = []

    def emit(event: Event) -> None:
        if isinstance(event, LaunchAttempted) and event.error:
            refusals.append(f"{event.instance_type} in {event.zone}: {event.error}")
        ctx.emit(event)

    provider = provider_for(spec, ctx.home, ctx.clock, emit)
    cluster = ClusterHandle(provider, spec, force=options.force)
    preview = await preview_up(ctx, cluster, options.source_of, options.restart)
    observed, plan = preview.observed, preview.plan
    if options.restart == "never" and client.has_controller(spec):
        plan = plan.without_endings()  # the controller drains what is too much
    if plan.outdated:
        ctx.emit(_left_as_they_are(plan.outdated))
    if plan.empty:
        cluster_lookup.remember(ctx, spec)
        head = next(i for i in observed.instances if i.role == "head")
        await client.deploy_controller(ctx, cluster, head)
        as_asked = "it is up" if plan.outdated else "it is up and as asked for"
        ctx.emit(Unchanged(spec.cluster_name, as_asked))
        return UpResult(plan, tuple(observed.instances))
    replace(preview, plan=plan).tell(ctx.emit)
    # A question is for what costs money or interrupts work; a cluster here does neither.
    costs = cluster.capabilities.costs_money
    if (costs or plan.is_disruptive) and not ctx.confirm(f"Bring up cluster {spec.cluster_name}?"):
        return UpResult(None)

    cluster_lookup.remember(ctx, spec)
    heads = [i for i in observed.instances if i.role == "head" and i.state is State.RUNNING]
    async with client.controller_paused(cluster, heads):
        result = await _bring_up(ctx, cluster, observed, plan)
        for _ in range(_REFILLS):
            if not await _were_lost(ctx, cluster, result):
                break
            observed = await cluster.observe()
            # Nobody was asked about this round, so nothing ends in it.
            again: RestartPolicy = "never" if options.restart == "never" else "as needed"
            refill = plan_up(spec, observed, again).without_endings()
            result = await _bring_up(ctx, cluster, observed, refill)
        if result.head.name in result.failures:
            raise incomplete(result.failures, len(result.nodes))
        await client.deploy_controller(ctx, cluster, result.head)
    total = len(result.nodes)
    if result.failures:
        raise incomplete(result.failures, total)
    if result.missing > 0:
        raise _not_to_be_had(result.missing, total, refusals)
    start = cluster.node_plan(result.head, result.head).start
    announce_ready(ctx, spec, start, nodes=total, began=began)
    return UpResult(plan, result.nodes)


@dataclass(frozen=True)
class _Result:
    """What came of carrying out a plan: the nodes, what failed on some of them, and how many
    machines were not to be had."""

    head: Instance
    nodes: tuple[Instance, ...]
    failures: Failures
    missing: int


async def _bring_up(
    ctx: Context, cluster: ClusterHandle, observed: ObservedCluster, plan: UpPlan
) -> _Result:
    created, started = await _carry_out(ctx, cluster, plan)
    gone = {i.id for i in (*plan.terminate, *plan.spare, *created)}
    there = [i for i in observed.instances if i.id not in gone and i.state not in NOT_THERE]
    kept = [started.get(i.id, i) for i in there]
    head = next(i for i in (*kept, *created) if i.role == "head")
    works = [
        *(
            cluster.node_plan(started.get(update.instance.id, update.instance), head, update.mode)
            for update in plan.updates
        ),
        *(cluster.node_plan(instance, head) for instance in created),
    ]
    head_work = next((w for w in works if w.instance is head), None) or cluster.node_plan(
        head, head
    )
    board = StatusTagger(cluster.provider, ctx.clock)
    heard = board.wrap([work.instance for work in works], ctx.emit)
    failures = await bootstrap_nodes(works, head_work, heard, ctx.clock)
    await board.flush()
    return _Result(
        head=head,
        nodes=(*kept, *created),
        failures=failures,
        missing=sum(launch.count for launch in plan.launches) - len(created),
    )


async def _were_lost(ctx: Context, cluster: ClusterHandle, result: _Result) -> bool:
    """Whether machines were taken away while they were being brought up, so that others are to be
    asked for."""
    silent = [
        (node, error)
        for node in result.nodes
        if isinstance(error := result.failures.get(node.name), UnreachableError)
    ]
    if not silent:
        return False
    found = {i.id: i.state for i in await cluster.instances()}
    lost = [
        (node, error)
        for node, error in silent
        if found.get(node.id, State.TERMINATED) in (State.TERMINATING, State.TERMINATED)
    ]
    for node, error in lost:
        ctx.emit(Warned("its machine is gone; another is asked for", error.why, node=node.name))
    return bool(lost)


def announce_ready(
    ctx: Context, spec: ClusterSpec, start: RayStart, *, nodes: int, began: float
) -> None:
    """Tell that all is there since `began`, and what a person may want to do now."""
    ctx.emit(
        ClusterReady(
            cluster=spec.cluster_name,
            nodes=nodes,
            seconds=ctx.clock.monotonic() - began,
            address=start.gcs_address,
            dashboard=start.dashboard,
            next_steps=_next_steps(spec),
        )
    )


async def _carry_out(
    ctx: Context, cluster: ClusterHandle, plan: UpPlan
) -> tuple[list[Instance], dict[str, Instance]]:
    """End what is surplus, quiet what restarts, switch on what is off, create what is missing:
    all at once, but for machines whose place others take. Those end first: an account's quota may
    have room for one of the two only, and two heads would be taken for those of two people.
    Returns the machines that are new, and those that were off, by id."""
    for instance in plan.terminate:
        ctx.emit(instance.entered(Phase.TERMINATING))
    quieted = [update.instance for update in plan.updates if update.stops_ray]
    off = [t.instance for t in plan.updates if t.instance.state in (State.STOPPED, State.STOPPING)]
    others = [i for i in plan.terminate if i not in plan.replaced]
    created: list[Instance] = []
    started: dict[str, Instance] = {}

    async def create() -> None:
        await cluster.terminate(plan.replaced)
        created.extend(await cluster.provider.launch(cluster.spec, plan.launches))

    async def start() -> None:
        started.update({i.id: i for i in await cluster.provider.start(cluster.spec, off)})

    await run_all(
        [
            create(),
            start(),
            cluster.stop_ray(quieted),
            cluster.terminate(others),
        ]
    )
    name = cluster.spec.cluster_name
    cost.record_running(ctx, name, [*created, *started.values()])
    cost.record_ended(ctx, name, plan.terminate)
    for instance in plan.terminate:
        ctx.emit(instance.entered(Phase.GONE))
    for instance in created:
        ctx.emit(instance.entered(Phase.BOOTING))
    return created, started


def _left_as_they_are(outdated: Sequence[Instance]) -> Warned:
    names = ", ".join(i.name for i in outdated)
    return Warned(
        f"the file asks for other machines than {names}",
        why="node_config, ssh_user or volumes have changed since they were launched, and only "
        "another machine could have what is new",
        fix="shoal up, without --no-restart or --restart-only, replaces them",
    )


def incomplete(failures: Failures, total: int) -> ShoalError:
    """One error for all that failed. Its words are those of the first, since one cause often
    stops many nodes; the rest is named."""
    if len(failures) == 1 and total == 1:
        return next(iter(failures.values()))
    name, first = next(iter(failures.items()))
    missing = ", ".join(failures)
    retry = "shoal up again retries only these; shoal down gives everything back"
    own_fix = "" if first.fix.startswith("shoal up again") else first.fix
    return IncompleteError(
        f"{len(failures)} of {total} nodes did not come up: {missing}",
        why=f"{name}: {first.what}" + (f" ({first.why})" if first.why else ""),
        fix=f"{own_fix}\n{retry}" if own_fix else retry,
        output=first.output,
    )


def _not_to_be_had(missing: int, total: int, refusals: list[str]) -> ShoalError:
    return IncompleteError(
        f"{missing} of {total + missing} machines are not to be had; the other {total} are ready",
        why=refusals[-1] if refusals else "the provider gave fewer than asked for",
        fix="shoal up again asks for the missing ones only\n"
        "name other machine types to take instead: shoal: {fallback: {...}}",
    )


def _next_steps(spec: ClusterSpec) -> tuple[tuple[str, str], ...]:
    name = shlex.quote(spec.cluster_name)
    driver = (
        f"{source_command(spec.shoal.environment)}; python -i -c 'import ray; ray.init(\"auto\")'"
    )
    return (
        *([("a driver, on the head", driver)] if spec.shoal.environment else []),
        ("run a program on it", f"shoal exec {name} 'python script.py'"),
        ("look at it", f"shoal status {name}"),
        ("open a shell on it", f"shoal attach {name}"),
        ("give it back", f"shoal down {name}"),
    )
