"""Lists the clusters of an AWS account in all regions, and deletes what clusters left behind."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.core.concurrency import run_all
from shoal.core.events import PlanStep, ResourcesDeleted, Stage, Warned
from shoal.core.money import dollars
from shoal.ops.context import Context, Severity
from shoal.ops.images import describe_size
from shoal.providers import require_aws
from shoal.providers.model import State

if TYPE_CHECKING:
    from shoal.providers.aws.inventory import ClusterResources, RetainedVolume
    from shoal.providers.baked_images import BakedImage

_log = logging.getLogger(__name__)

_QUERY = "querying all regions"


@dataclass(frozen=True)
class ClusterListing:
    """One cluster in one region. The price is not `complete` where that of an instance is
    unknown. `kept` describes the volumes that its file retains beyond their instances, and
    the images that were baked for it."""

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


async def collect_garbage(ctx: Context, *, images: bool = False) -> bool:
    """Delete workers without a head, resources of clusters without instances, and images that AWS
    could not complete. Recent resources (an `up` may be running), retained volumes and baked images
    are reported and kept; with `images`, those of clusters without instances are deleted too. False
    when the user declined."""
    from shoal.providers.aws.inventory import delete_images, delete_orphan, list_cluster_resources

    require_aws()
    ctx.emit(Stage(_QUERY))
    clusters = await list_cluster_resources(ctx.clock, ctx.emit)
    now = ctx.clock.now()
    unused = [(r, list(_unused_images(r, now, images))) for r in clusters]
    unused = [(resources, some) for resources, some in unused if some]
    for resources in clusters:
        _report_kept(ctx, resources, [i for r, some in unused for i in some if r is resources])
    orphans = [resources for resources in clusters if resources.is_orphan(now)]
    for resources in orphans:
        where = f"{resources.cluster} in {resources.region}"
        _log.info("%s is orphaned", where)
        for instance in resources.instances:
            ctx.emit(PlanStep("terminate", f"instance {instance.id}", f"{where} has no head"))
        for resource in resources.others:
            ctx.emit(PlanStep("remove", resource, f"{where} has no instances"))
    for resources, some in unused:
        where = f"{resources.cluster} in {resources.region}"
        for image in some:
            why = "AWS could not complete it" if image.state == "failed" else "has no instances"
            reason = f"{where}: {why}, {describe_size(image)}"
            ctx.emit(PlanStep("remove", f"image {image.id}", reason))
    if not orphans and not unused:
        ctx.emit(ResourcesDeleted(()))
        return True
    if not ctx.confirm("Delete all of this?", Severity.DESTRUCTIVE):
        return False
    deleted = await run_all(delete_orphan(r, ctx.clock, ctx.emit) for r in orphans)
    deleted += await run_all(delete_images(r, some, ctx.clock) for r, some in unused)
    ctx.emit(ResourcesDeleted(tuple(name for names in deleted for name in names)))
    return True


def _unused_images(
    resources: ClusterResources, now: float, delete_complete: bool
) -> Iterator[BakedImage]:
    """The images that no node needs."""
    is_idle = not resources.instances and not resources.is_new(now)
    for image in resources.images:
        if image.state == "failed" or (delete_complete and is_idle):
            yield image


def _report_kept(ctx: Context, resources: ClusterResources, unused: Sequence[BakedImage]) -> None:
    where = f"{resources.cluster} in {resources.region}"
    if not resources.has_head and resources.is_new(ctx.clock.now()):
        why = "some of its resources were just created: an up may be running"
        ctx.emit(Warned(f"{where} is not deleted", why, "in a few minutes: shoal gc"))
    for volume in resources.retained:
        delete = f"aws ec2 delete-volume --region {resources.region} --volume-id {volume.id}"
        why = f"the file of {where} retains it"
        fix = f"{delete}, if it is no longer needed"
        ctx.emit(Warned(f"{_describe(volume)}, is kept", why, fix))
    if not resources.instances:  # else nodes may need them
        for image in resources.images:
            if image not in unused:
                why = f"the next up of {where} starts from it"
                ctx.emit(Warned(f"{_describe_image(image)}, is kept", why, "shoal gc --images"))


def _describe(volume: RetainedVolume) -> str:
    return f"volume {volume.id} with {volume.gib} GiB, about {dollars(volume.per_month)}/month"


def _describe_image(image: BakedImage) -> str:
    return f"image {image.id} of {image.node_type} with {describe_size(image)}"


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
        kept=(
            *map(_describe, resources.retained),
            *map(_describe_image, resources.images),
        ),
    )


def _state(resources: ClusterResources, now: float) -> str:
    if not resources.has_head and resources.is_new(now):
        return "no head yet"
    if not (resources.instances or resources.others):
        return "volumes kept" if resources.retained else "images kept"
    if not resources.instances:
        return "no instances; shoal gc"
    if not resources.has_head:
        return "no head; shoal gc"
    states = {i.state for i in resources.instances}
    if states <= {State.STOPPED, State.STOPPING}:
        return "stopped"
    return "up"
