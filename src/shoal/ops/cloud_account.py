"""Lists the clusters of an AWS account in all regions, and deletes what clusters left behind."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.core.concurrency import run_all
from shoal.core.events import PlanStep, ResourcesDeleted, Stage, Warned
from shoal.core.money import dollars
from shoal.ops.context import Context, Severity
from shoal.providers import require_aws
from shoal.providers.model import State

if TYPE_CHECKING:
    from shoal.providers.aws.inventory import ClusterResources, RetainedVolume

_log = logging.getLogger(__name__)

_QUERY = "querying all regions"


@dataclass(frozen=True)
class ClusterListing:
    """One cluster in one region. The price is not `complete` where that of an instance is
    unknown. `kept` describes the volumes that its file retains beyond their instances."""

    cluster: str
    provider: str
    made_by: str
    nodes: int
    state: str
    age_s: float | None
    price_per_hour: float
    complete: bool = True
    others: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


async def list_clusters(ctx: Context) -> list[ClusterListing]:
    """Every cluster of the account, launched by Shoal or by Ray."""
    from shoal.providers.aws.inventory import add_prices, list_cluster_resources

    require_aws()
    ctx.emit(Stage(_QUERY))
    clusters = await list_cluster_resources(ctx.clock, ctx.emit)
    priced = await add_prices(clusters, ctx.clock, ctx.home)
    return [_listing(ctx, resources) for resources in priced]


async def collect_garbage(ctx: Context) -> bool:
    """Delete workers without a head, and resources of clusters without instances. Recent
    resources (an `up` may be running) and retained volumes are reported and kept. False when the
    user declined."""
    from shoal.providers.aws.inventory import delete_orphan, list_cluster_resources

    require_aws()
    ctx.emit(Stage(_QUERY))
    clusters = await list_cluster_resources(ctx.clock, ctx.emit)
    now = ctx.clock.now()
    for resources in clusters:
        _report_kept(ctx, resources)
    orphans = [resources for resources in clusters if resources.is_orphan(now)]
    for resources in orphans:
        where = f"{resources.cluster} in {resources.region}"
        _log.info("%s is orphaned", where)
        for instance in resources.instances:
            ctx.emit(PlanStep("terminate", f"instance {instance.id}", f"{where} has no head"))
        for resource in resources.others:
            ctx.emit(PlanStep("remove", resource, f"{where} has no instances"))
    if not orphans:
        ctx.emit(ResourcesDeleted(()))
        return True
    if not ctx.confirm("Delete all of this?", Severity.DESTRUCTIVE):
        return False
    deleted = await run_all(delete_orphan(r, ctx.clock, ctx.emit) for r in orphans)
    ctx.emit(ResourcesDeleted(tuple(name for names in deleted for name in names)))
    return True


def _report_kept(ctx: Context, resources: ClusterResources) -> None:
    where = f"{resources.cluster} in {resources.region}"
    if not resources.has_head and resources.is_new(ctx.clock.now()):
        why = "some of its resources were just created: an up may be running"
        ctx.emit(Warned(f"{where} is not deleted", why, "in a few minutes: shoal gc"))
    for volume in resources.retained:
        delete = f"aws ec2 delete-volume --region {resources.region} --volume-id {volume.id}"
        why = f"the file of {where} retains it"
        fix = f"{delete}, if it is no longer needed"
        ctx.emit(Warned(f"{_describe(volume)}, is kept", why, fix))


def _describe(volume: RetainedVolume) -> str:
    return f"volume {volume.id} with {volume.gib} GiB, about {dollars(volume.per_month)}/month"


def _listing(ctx: Context, resources: ClusterResources) -> ClusterListing:
    instances = resources.instances
    billed = [i for i in instances if i.state in (State.PENDING, State.RUNNING)]
    oldest = min((i.created_at for i in instances if i.created_at is not None), default=None)
    return ClusterListing(
        cluster=resources.cluster,
        provider=f"aws {resources.region}",
        made_by="shoal" if resources.by_shoal else "ray",
        nodes=len(instances),
        state=_state(resources, ctx.clock.now()),
        age_s=None if oldest is None else ctx.clock.now() - oldest,
        price_per_hour=math.fsum(i.price_per_hour or 0.0 for i in billed),
        complete=all(i.price_per_hour is not None for i in billed),
        others=resources.others,
        kept=tuple(map(_describe, resources.retained)),
    )


def _state(resources: ClusterResources, now: float) -> str:
    if not resources.has_head and resources.is_new(now):
        return "no head yet"
    if resources.retained and not (resources.instances or resources.others):
        return "volumes kept"
    if not resources.instances:
        return "no instances; shoal gc"
    if not resources.has_head:
        return "no head; shoal gc"
    states = {i.state for i in resources.instances}
    if states <= {State.STOPPED, State.STOPPING}:
        return "stopped"
    return "up"
