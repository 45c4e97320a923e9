"""Previews `up`: observes the cluster, runs the preflight checks, and computes the plan and its
price. Changes nothing. `shoal plan` stops here."""

from __future__ import annotations

import logging
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.catalog import catalog_source, offerings_for
from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.controller import client
from shoal.core.concurrency import run_all
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.events import Emit, ImageChosen, PlanStep, PriceEstimated, Stage, Unchanged
from shoal.costs.estimate import PlannedNodes, estimate
from shoal.ops import preflight
from shoal.ops.context import Context
from shoal.ops.images import chosen_images
from shoal.ops.up_plan import (
    ABSENT_STATES,
    RestartPolicy,
    UpPlan,
    needs_launches,
    plan_up,
)
from shoal.providers.model import Finding, State, head_of
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.loading import SourceOf, unknown_source

_log = logging.getLogger(__name__)

# Preflight checks save time: a check that takes longer than this is skipped with a warning.
_PREFLIGHT_SECONDS = 15.0


@dataclass(frozen=True)
class UpPreview:
    """What was observed, what `up` would do about it, and the price of the resulting cluster.
    `settings` are the changes for the controller of a head that stays, `images` what nodes are
    launched from if the cluster bakes images."""

    observed: ObservedCluster
    plan: UpPlan
    price: PriceEstimated | None
    settings: tuple[str, ...] = ()
    images: tuple[ImageChosen, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.plan.is_empty and not self.plan.drain and not self.settings

    def show(self, emit: Emit) -> None:
        """Emit the plan and its price, for the user to confirm."""
        for step in self.plan.steps:
            emit(step)
        for change in self.settings:
            emit(PlanStep("update", "settings", change))
        for image in self.images:
            emit(image)
        if self.price is not None:
            emit(self.price)


async def preview_up(
    ctx: Context,
    cluster: ClusterHandle,
    source_of: SourceOf,
    restart: RestartPolicy = "as needed",
    skip_checks: Collection[str] = (),
) -> UpPreview:
    """Observe the instances and, only if new ones are needed, run the account checks and load
    prices, in parallel. Raises `ConfigError` when a check found an error. The errors of
    `skip_checks` are only warnings."""
    ctx.emit(Stage("checking"))
    findings = await preflight.check_spec(cluster)
    try:
        instances = await cluster.instances()
    except ConfigError:
        # A finding may be the cause.
        raise_on_errors(ctx, _demoted(findings, skip_checks), source_of)
        raise
    offerings = _Offerings(cluster)
    tasks: list[Coroutine[Any, Any, Any]] = [cluster.observe(instances), chosen_images(cluster)]
    by_controller = cluster.capabilities.controller_launches_workers
    if needs_launches(cluster.spec, instances, restart, controller_launches_workers=by_controller):
        account_checks = preflight.check_account(cluster, ctx.clock, _PREFLIGHT_SECONDS)
        tasks += [account_checks, offerings.load()]
    observed, images, *rest = await run_all(tasks)
    if rest:
        findings += rest[0]
    raise_on_errors(ctx, _demoted(findings, skip_checks), source_of)
    _raise_if_head_unusable(cluster, observed)
    plan = plan_up(cluster.spec, observed, restart)
    for finding in preflight.locate(_unusable_workers(cluster, observed, plan), source_of):
        ctx.emit(finding)
    nodes = planned_nodes(observed, plan)
    head = head_of(observed.instances)
    settings: list[str] = []
    if head is not None and plan.is_empty:  # else a step of the plan deploys the controller
        settings = await client.pending_changes(cluster, head)
    price = None
    if cluster.capabilities.costs_money:
        price = estimate(cluster.spec, nodes, offerings.offerings, offerings.price_source)
    return UpPreview(observed, plan, price, tuple(settings), tuple(images))


def _raise_if_head_unusable(cluster: ClusterHandle, observed: ObservedCluster) -> None:
    head = cluster.capabilities.fixed_head
    if head is not None and head.id in observed.unusable_hosts:
        raise observed.unusable_hosts[head.id]


def _unusable_workers(
    cluster: ClusterHandle, observed: ObservedCluster, plan: UpPlan
) -> list[Finding]:
    """The hosts that the plan would need and that the cluster cannot use."""
    needed = sum(launch.count for launch in plan.launches if launch.role == "worker")
    hosts = cluster.capabilities.hosts
    if hosts is None or needed <= len(observed.free_hosts):
        return []
    errors = [
        (host, observed.unusable_hosts[host.id])
        for host in hosts()
        if host.id in observed.unusable_hosts
    ]
    return [
        Finding(
            "warning",
            f"{host.name} ({host.address}) cannot be used",
            why=f"{error.what}: {error.why}" if error.why else error.what,
            fix=error.fix,
        )
        for host, error in errors
    ]


def planned_nodes(observed: ObservedCluster, plan: UpPlan) -> list[PlannedNodes]:
    """The nodes that run once the plan is executed."""
    terminated = {i.id for i in (*plan.terminate, *plan.drain)}
    updated = {update.instance.id for update in plan.updates}
    nodes = []
    for i in observed.instances:
        stays_stopped = i.state in (State.STOPPED, State.STOPPING) and i.id not in updated
        if i.id in terminated or i.state in ABSENT_STATES or stays_stopped:
            continue
        nodes.append(PlannedNodes(i.node_type, 1, i.instance_type, i.market, i.price_per_hour))
    nodes += [PlannedNodes(r.node_type, r.count, market=r.market) for r in plan.launches]
    return nodes


async def show_plan(
    ctx: Context,
    spec: ClusterSpec,
    source_of: SourceOf = unknown_source,
    skip_checks: Collection[str] = (),
) -> UpPlan:
    """Emit what `up` would do now."""
    cluster = ClusterHandle.of(ctx, spec)
    preview = await preview_up(ctx, cluster, source_of, skip_checks=skip_checks)
    preview.show(ctx.emit)
    if preview.is_empty:
        ctx.emit(Unchanged(spec.cluster_name, "the cluster is up and matches its file"))
    return preview.plan


class _Offerings:
    """Prices of the file's instance types: the provider's, or those of the shipped catalog."""

    def __init__(self, cluster: ClusterHandle) -> None:
        self._cluster = cluster
        self.offerings: Sequence[Offering] = offerings_for(cluster.spec)
        self.price_source = catalog_source(cluster.spec)

    async def load(self) -> None:
        provider, spec = self._cluster.provider, self._cluster.spec
        price_source = provider.capabilities.price_source
        if price_source is not None:
            try:
                self.offerings = await provider.offerings(spec)
                self.price_source = price_source(spec)
            except ShoalError as error:
                # A check reports the cause if it matters.
                _log.info("using catalog prices, the provider's are not available: %s", error)


def _demoted(findings: Sequence[Finding], skip_checks: Collection[str]) -> list[Finding]:
    """The findings, with those of the skipped checks as warnings."""
    return [replace(f, severity="warning") if f.check in skip_checks else f for f in findings]


def raise_on_errors(ctx: Context, findings: Sequence[Finding], source_of: SourceOf) -> None:
    """Emit the findings, and raise `ConfigError` if one of them is an error."""
    located = preflight.locate(findings, source_of)
    errors = [finding for finding in located if finding.severity == "error"]
    for finding in located:
        if errors != [finding]:
            ctx.emit(finding)
    if len(errors) == 1:
        (only,) = errors
        what = f"{only.location}: {only.what}" if only.location else only.what
        skip = f"or if the check is wrong: shoal up CLUSTER --skip-checks {only.check}"
        fix = "\n".join(filter(None, [only.fix, skip if only.check else ""]))
        raise ConfigError(what, why=only.why, fix=fix)
    if errors:
        raise ConfigError(
            f"{len(errors)} problems found, nothing was changed",
            why="each of them would keep the cluster from coming up",
            fix="apply the fix given for each problem\nshoal up CLUSTER\n"
            "or if a check is wrong, skip it by the name in brackets: --skip-checks NAME",
        )
