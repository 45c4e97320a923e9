"""Brings a cluster up, or brings it to what its file says now. Repeating it does no harm:
it finishes what an interrupted run began, and does nothing when nothing is left to do."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.bootstrap import receipt as receipts
from shoal.bootstrap.pipeline import Failures, NodeWork, assemble
from shoal.engine.view import RayNode, ray_nodes
from shoal.errors import ConfigError, IncompleteError, SetupError, ShoalError
from shoal.events import (
    ClusterReady,
    NodeChanged,
    Phase,
    Stage,
    Unchanged,
    Warned,
)
from shoal.ops import target
from shoal.ops.context import Context
from shoal.ops.plan import Seen, UpPlan, plan_up
from shoal.providers import provider_for
from shoal.providers.base import Instance, Provider
from shoal.spec.model import ClusterSpec


@dataclass(frozen=True)
class UpResult:
    """How `up` ended: the plan it carried out (empty when there was nothing to do, none when
    the person said no)."""

    plan: UpPlan | None
    instances: tuple[Instance, ...] = ()


async def up(ctx: Context, spec: ClusterSpec, *, no_restart: bool = False) -> UpResult:
    """Make the cluster what `spec` says. Raises `IncompleteError` when some nodes are missing
    at the end, `ConfigError` before anything is touched when it could not have worked."""
    began = ctx.clock.monotonic()
    provider = provider_for(spec, ctx.home, ctx.clock)
    await _check(ctx, provider, spec)
    seen = await look(provider, spec)
    plan = plan_up(spec, seen, no_restart=no_restart)
    if plan.empty:
        target.remember(ctx, spec)
        ctx.emit(Unchanged(spec.cluster_name, "it is up and as asked for"))
        return UpResult(plan, tuple(seen.instances))
    for step in plan.steps:
        ctx.emit(step)
    # A question is for what costs money or interrupts work; a cluster here does neither.
    costs = spec.provider.type != "embedded"
    if (costs or plan.disturbs) and not ctx.confirm(f"Bring up cluster {spec.cluster_name}?"):
        return UpResult(None)

    target.remember(ctx, spec)
    kept, created = await _carry_out(ctx, provider, spec, plan, seen)
    instances = [*kept, *created]
    head = _head(instances)
    works = [_work(provider, spec, i, head) for i in (*plan.restart, *created)]
    head_runs = head not in created and head not in plan.restart
    failures = await assemble(works, ctx.emit, head_runs=head_runs)
    if failures:
        raise _incomplete(failures, total=len(instances))
    start = provider.ray_start(spec, head, head)
    ctx.emit(
        ClusterReady(
            cluster=spec.cluster_name,
            nodes=len(instances),
            seconds=ctx.clock.monotonic() - began,
            address=start.gcs_address,
            dashboard=start.dashboard,
            next_steps=_next_steps(spec),
        )
    )
    return UpResult(plan, tuple(instances))


async def look(provider: Provider, spec: ClusterSpec) -> Seen:
    """All that can be seen of the cluster: machines, receipts, and who is alive in Ray."""
    instances = await provider.find(spec.cluster_name)
    head = next((i for i in instances if i.role == "head"), None)
    if head is None:
        return Seen(instances)
    works = {
        i.id: _work(provider, spec, i, head)
        for i in instances
        if i.role == "head" or i.node_type in spec.node_types
    }
    alive, done = await asyncio.gather(
        alive_nodes(provider, spec, head),
        asyncio.gather(*(receipts.read(w.runner) for w in works.values())),
    )
    return Seen(
        instances=instances,
        receipts=dict(zip(works, done, strict=True)),
        goals={id: w.goal for id, w in works.items()},
        alive=frozenset(alive),
    )


async def alive_nodes(provider: Provider, spec: ClusterSpec, head: Instance) -> dict[str, RayNode]:
    """The nodes that Ray counts as alive, by instance id; none when Ray does not answer."""
    start = provider.ray_start(spec, head, head)
    try:
        return await ray_nodes(
            provider.runner(spec, head), start.python, start.gcs_address, start.driver_env()
        )
    except SetupError:
        return {}


async def _check(ctx: Context, provider: Provider, spec: ClusterSpec) -> None:
    ctx.emit(Stage("checking"))
    findings = await provider.check(spec)
    for finding in findings:
        if finding.severity == "warning":
            ctx.emit(Warned(finding.what, finding.why, finding.fix))
    errors = [f for f in findings if f.severity == "error"]
    for extra in errors[1:]:
        ctx.emit(Warned(extra.what, extra.why, extra.fix))
    if errors:
        raise ConfigError(errors[0].what, why=errors[0].why, fix=errors[0].fix)


async def _carry_out(
    ctx: Context, provider: Provider, spec: ClusterSpec, plan: UpPlan, seen: Seen
) -> tuple[list[Instance], list[Instance]]:
    """End what is surplus, quiet what restarts, create what is missing: all at once. Returns
    the machines that were kept and those that are new."""
    for instance in plan.terminate:
        ctx.emit(_changed(instance, Phase.TERMINATING))
    created, _, _ = await asyncio.gather(
        provider.create(spec, plan.launches),
        provider.halt(spec, plan.restart),
        provider.terminate(spec, plan.terminate),
    )
    for instance in plan.terminate:
        ctx.emit(_changed(instance, Phase.GONE))
    for instance in created:
        ctx.emit(_changed(instance, Phase.BOOTING))
    kept = [i for i in seen.instances if i not in plan.terminate]
    return kept, list(created)


def _work(provider: Provider, spec: ClusterSpec, instance: Instance, head: Instance) -> NodeWork:
    return NodeWork(
        instance=instance,
        runner=provider.runner(spec, instance),
        setup=spec.setup_for(instance.node_type, instance.role),
        start=provider.ray_start(spec, instance, head),
    )


def _incomplete(failures: Failures, total: int) -> ShoalError:
    """One error for all that failed. Its words are those of the first, since one cause often
    stops many nodes; the rest is named."""
    if len(failures) == 1 and total == 1:
        return next(iter(failures.values()))
    name, first = next(iter(failures.items()))
    missing = ", ".join(failures)
    return IncompleteError(
        f"{len(failures)} of {total} nodes did not come up: {missing}",
        why=f"{name}: {first.what}" + (f" ({first.why})" if first.why else ""),
        fix="shoal up again retries only these; shoal down gives everything back",
        output=first.output,
    )


def _changed(instance: Instance, phase: Phase) -> NodeChanged:
    return NodeChanged(
        instance.name, instance.node_type, instance.role, phase, address=instance.address
    )


def _head(instances: Sequence[Instance]) -> Instance:
    return next(i for i in instances if i.role == "head")


def _next_steps(spec: ClusterSpec) -> tuple[tuple[str, str], ...]:
    name = shlex.quote(spec.cluster_name)
    return (
        ("run a program on it", f"shoal exec {name} 'python script.py'"),
        ("look at it", f"shoal status {name}"),
        ("give it back", f"shoal down {name}"),
    )
