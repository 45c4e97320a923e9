"""Lists the clusters of an AWS account and of Google Cloud projects in all regions, and deletes
what clusters left behind."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, ConfigError, ShoalError
from shoal.core.events import PlanStep, ResourcesDeleted, Stage, Warned
from shoal.core.logs import suppress_and_log
from shoal.core.money import dollars
from shoal.ops import known_clusters
from shoal.ops.context import Context, Severity
from shoal.ops.images import describe_size
from shoal.ops.ls import stopped_instances
from shoal.providers import require_aws, require_gcp
from shoal.providers.model import State

if TYPE_CHECKING:
    from shoal.providers.baked_images import BakedImage
    from shoal.providers.vm.inventory import ClusterResources, Inventory, RetainedVolume

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
    """Every cluster of the account and the projects, launched by Shoal or by Ray."""
    ctx.emit(Stage(_QUERY))
    listed = await _list_all(ctx)
    priced = await run_all(inventory.add_prices(some) for inventory, some in listed)
    return [_listing(ctx, resources) for some in priced for resources in some]


async def _list_all(ctx: Context) -> list[tuple[Inventory, list[ClusterResources]]]:
    """What each cloud lists. A cloud without credentials is skipped with a warning, unless there is
    no other."""
    inventories = await _inventories(ctx)
    errors: list[ShoalError] = []

    async def list_one(inventory: Inventory) -> list[ClusterResources] | None:
        try:
            return await inventory.list_clusters()
        except (AuthError, ConfigError) as error:
            errors.append(error)
            return None

    listed = await run_all(list_one(inventory) for inventory in inventories)
    found = [(i, some) for i, some in zip(inventories, listed, strict=True) if some is not None]
    if errors and not found:
        raise errors[0]
    for error in errors:
        ctx.emit(Warned(error.what, error.why, error.fix))
    return found


async def _inventories(ctx: Context) -> list[Inventory]:
    """The account and the projects that this machine can list."""
    found: list[Inventory] = []
    projects = await _projects(ctx)
    if projects:
        from shoal.providers.gcp.inventory import GcpInventory

        found += [GcpInventory(project, ctx.clock, ctx.emit) for project in projects]
    try:
        require_aws()
    except ConfigError:
        if not found:
            raise
    else:
        from shoal.providers.aws.inventory import AwsInventory

        found.insert(0, AwsInventory(ctx.clock, ctx.emit, ctx.home))
    return found


async def _projects(ctx: Context) -> list[str]:
    """The Google Cloud projects of the known clusters and of the environment."""
    try:
        require_gcp()
    except ConfigError:
        return []
    from shoal.providers.gcp.project_settings import environment_project

    projects = {await asyncio.to_thread(environment_project)}
    for name in known_clusters.recorded_names(ctx.home):
        with suppress_and_log(_log, f"read the record of {name}", ShoalError):
            provider = known_clusters.load_recorded(ctx, name).provider
            if provider.type == "gcp":
                projects.add(str(provider.settings.get("project_id") or ""))
    return sorted(projects - {""})


async def collect_garbage(ctx: Context, *, images: bool = False) -> bool:
    """Delete workers without a head, resources of clusters without instances, and images that AWS
    could not complete. Recent resources (an `up` may be running), retained volumes and baked images
    are reported and kept; with `images`, those of clusters without instances are deleted too. False
    when the user declined."""
    ctx.emit(Stage(_QUERY))
    listed = await _list_all(ctx)
    clusters = [resources for _, some in listed for resources in some]
    owners = {id(resources): inventory for inventory, some in listed for resources in some}
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
    deleted = await run_all(owners[id(r)].delete_orphan(r) for r in orphans)
    deleted += await run_all(owners[id(r)].delete_images(r, some) for r, some in unused)
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
        why = f"the file of {where} retains it"
        fix = f"{volume.delete_command}, if it is no longer needed"
        ctx.emit(Warned(f"{_describe(volume)}, is kept", why, fix))
    if not resources.instances:  # else nodes may need them
        for image in resources.images:
            if image not in unused:
                why = f"the next up of {where} starts from it"
                ctx.emit(Warned(f"{_describe_image(image)}, is kept", why, "shoal gc --images"))


def _describe(volume: RetainedVolume) -> str:
    cost = "" if volume.per_month is None else f", about {dollars(volume.per_month)}/month"
    return f"volume {volume.id} with {volume.gib} GiB{cost}"


def _describe_image(image: BakedImage) -> str:
    return f"image {image.id} of {image.node_type} with {describe_size(image)}"


def _listing(ctx: Context, resources: ClusterResources) -> ClusterListing:
    instances = resources.instances
    billed = [i for i in instances if i.state in (State.PENDING, State.RUNNING)]
    oldest = min((i.created_at for i in instances if i.created_at is not None), default=None)
    return ClusterListing(
        cluster=resources.cluster,
        provider=f"{resources.cloud} {resources.region}",
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
    stopped = stopped_instances(resources.instances)
    states = {i.state for i in resources.instances}
    if states <= {State.STOPPED, State.STOPPING}:
        return "stopped: disk only" if stopped else "stopping"
    return f"up; {stopped}" if stopped else "up"
