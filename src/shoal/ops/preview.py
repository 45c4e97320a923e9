"""What `up` is about to do, seen before it is done: what is there, what stands in the way, and what
the cluster will cost. `plan` stops here."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.catalog import catalog_source, offerings_for
from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.events import Emit, PriceEstimated, Stage, Unchanged
from shoal.costs.estimate import PlannedNodes, estimate
from shoal.ops import preflight
from shoal.ops.context import Context
from shoal.ops.up_plan import (
    NOT_THERE,
    RestartPolicy,
    UpPlan,
    needs_machines,
    plan_up,
)
from shoal.providers.model import Finding, State
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.loading import SourceOf, unknown_source

# Looking ahead is to save time: what does not answer by then is left to show itself.
_EXAMINE_SECONDS = 15.0


@dataclass(frozen=True)
class UpPreview:
    """What there is, what is to be done about it, and what the cluster then costs an hour."""

    observed: ObservedCluster
    plan: UpPlan
    price: PriceEstimated | None

    def tell(self, emit: Emit) -> None:
        """The plan and its price, for a person to agree to."""
        for step in self.plan.steps:
            emit(step)
        if self.price is not None:
            emit(self.price)


async def preview_up(
    ctx: Context, cluster: ClusterHandle, source_of: SourceOf, restart: RestartPolicy = "as needed"
) -> UpPreview:
    """Look at everything at once: at the machines that are there, and, only where new ones are
    needed, at what would keep them from coming, and at prices. Raises `ConfigError` when it could
    not work."""
    ctx.emit(Stage("checking"))
    wrong = await preflight.check(cluster)
    try:
        there = await cluster.instances()
    except ConfigError:
        raise_on_errors(ctx, wrong, source_of)  # which may be why
        raise
    market = _Market(cluster)
    looks: list[Coroutine[Any, Any, Any]] = [cluster.observe(there)]
    if needs_machines(cluster.spec, there, restart):
        looks += [preflight.examine(cluster, ctx.clock, _EXAMINE_SECONDS), market.look()]
    observed, *found = await run_all(looks)
    if found:
        wrong += found[0]
    raise_on_errors(ctx, wrong, source_of)
    plan = plan_up(cluster.spec, observed, restart)
    nodes = planned_nodes(observed, plan)
    price = None
    if cluster.capabilities.costs_money:
        price = estimate(cluster.spec, nodes, market.offers, market.source)
    return UpPreview(observed, plan, price)


def planned_nodes(observed: ObservedCluster, plan: UpPlan) -> list[PlannedNodes]:
    """The nodes that run once the plan is carried out."""
    terminated = {i.id for i in plan.terminate}
    updated = {update.instance.id for update in plan.updates}
    nodes = []
    for i in observed.instances:
        stays_off = i.state in (State.STOPPED, State.STOPPING) and i.id not in updated
        if i.id in terminated or i.state in NOT_THERE or stays_off:
            continue
        nodes.append(PlannedNodes(i.node_type, 1, i.machine, i.market, i.price_per_hour))
    nodes += [PlannedNodes(r.node_type, r.count, market=r.market) for r in plan.launches]
    return nodes


async def show(ctx: Context, spec: ClusterSpec, source_of: SourceOf = unknown_source) -> UpPlan:
    """What `up` would do now, told and not done."""
    preview = await preview_up(ctx, ClusterHandle.of(ctx, spec), source_of)
    preview.tell(ctx.emit)
    if preview.plan.empty:
        ctx.emit(Unchanged(spec.cluster_name, "it is up and as asked for"))
    return preview.plan


class _Market:
    """What the file's machines are sold for: as the provider says, or as the catalog has it."""

    def __init__(self, cluster: ClusterHandle) -> None:
        self._site = cluster
        self.offers: Sequence[Offering] = offerings_for(cluster.spec)
        self.source = catalog_source(cluster.spec)

    async def look(self) -> None:
        provider, spec = self._site.provider, self._site.spec
        price_source = provider.capabilities.price_source
        if price_source is not None:
            try:
                self.offers = await provider.offerings(spec)
                self.source = price_source(spec)
            except ShoalError:
                return  # which is told elsewhere, if it matters


def raise_on_errors(ctx: Context, findings: Sequence[Finding], source_of: SourceOf) -> None:
    """Tell what was found, and go on only if nothing of it is an error."""
    found = preflight.locate(findings, source_of)
    errors = [one for one in found if one.severity == "error"]
    for one in found:
        if errors != [one]:
            ctx.emit(one)
    if len(errors) == 1:
        (only,) = errors
        what = f"{only.location}: {only.what}" if only.location else only.what
        raise ConfigError(what, why=only.why, fix=only.fix)
    if errors:
        raise ConfigError(
            f"{len(errors)} mistakes were found, and nothing was done",
            why="each of them would keep the cluster from coming up",
            fix="do what is said under each, then shoal up again",
        )
