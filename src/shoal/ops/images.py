"""Baked images of a cluster: which one each node type starts from, and their deletion."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.events import ImageChosen, PlanStep, ResourcesDeleted, Warned
from shoal.core.money import dollars
from shoal.ops.context import Context, Severity
from shoal.providers.baked_images import BakedImage, ImageService
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)


def require_images(cluster: ClusterHandle) -> ImageService:
    """What makes the cluster's images. Raises `ConfigError` where there are none."""
    images = cluster.capabilities.images
    if images is None:
        raise ConfigError(
            "images can be baked on AWS only",
            why=f"the provider of {cluster.name} is {cluster.spec.provider.type}",
        )
    return images


async def chosen_images(cluster: ClusterHandle) -> list[ImageChosen]:
    """What the nodes of a cluster that bakes images would be launched from now. Empty if that
    cannot be found out, since nothing depends on it."""
    images = cluster.capabilities.images
    if images is None or not cluster.spec.shoal.bake:
        return []
    hashes = cluster.setup_hashes
    try:
        found = await images.node_images(cluster.spec, hashes)
    except ShoalError as error:
        _log.info("could not look for images: %s", error)
        return []
    return [
        ImageChosen(
            image.node_type,
            image.role,
            image.baked.id if image.baked else image.base,
            base=image.base,
            state="baked" if image.baked and image.baked.state == "available" else
            "pending" if image.baked else
            "to be baked" if hashes[image.node_type, image.role] else "not baked",
            snapshots=describe_size(image.baked) if image.baked else "",
        )
        for image in found
    ]  # fmt: skip


def describe_size(image: BakedImage) -> str:
    """The size of an image's snapshots and what they cost. EC2 may not say how much of a volume
    they store."""
    at_most = "" if image.is_exact else "at most "
    return f"{at_most}{image.gib:.0f} GiB, {at_most}{dollars(image.per_month)}/month"


async def find_stale(cluster: ClusterHandle) -> list[Finding]:
    """Images that cost money and that no node will be launched from."""
    images = cluster.capabilities.images
    if images is None:
        return []
    try:
        stale = await images.find_stale(cluster.spec, cluster.setup_hashes)
    except ShoalError as error:
        _log.info("could not look for stale images: %s", error)
        return []
    return [
        Finding(
            "warning",
            f"image {entry.image.id} of {entry.image.node_type} is no longer used "
            f"({describe_size(entry.image)})",
            why=entry.why,
            fix="shoal bake CLUSTER --prune",
        )
        for entry in stale
    ]


async def report_kept(ctx: Context, cluster: ClusterHandle) -> None:
    """Tell the user which images stay when the cluster is gone."""
    images = cluster.capabilities.images
    if images is None:
        return
    try:
        kept = await images.list_images(cluster.name)
    except ShoalError as error:
        _log.info("could not look for images: %s", error)
        return
    if kept:
        cost = dollars(sum(image.per_month for image in kept))
        ctx.emit(
            Warned(
                f"{len(kept)} baked images are kept, for at most {cost}/month: "
                + ", ".join(image.id for image in kept),
                why="the next up starts from them",
                fix="to delete them: shoal down CLUSTER --images",
            )
        )


async def remove_images(ctx: Context, spec: ClusterSpec) -> bool:
    """Delete all images of a cluster. False if the user declined."""
    cluster = ClusterHandle.of(ctx, spec)
    return await _remove(ctx, cluster, await require_images(cluster).list_images(cluster.name))


async def prune_images(ctx: Context, spec: ClusterSpec) -> bool:
    """Delete the images that the file no longer asks for. False if the user declined."""
    cluster = ClusterHandle.of(ctx, spec)
    stale = await require_images(cluster).find_stale(spec, cluster.setup_hashes)
    return await _remove(ctx, cluster, [entry.image for entry in stale])


async def _remove(ctx: Context, cluster: ClusterHandle, images: Sequence[BakedImage]) -> bool:
    for image in images:
        reason = f"baked for {image.node_type}, {describe_size(image)}"
        ctx.emit(PlanStep("remove", image.id, reason))
    question = f"Delete {len(images)} images of cluster {cluster.name}?"
    if images and not ctx.confirm(question, Severity.DESTRUCTIVE):
        return False
    # Without an image there may still be snapshots that an interrupted deletion left.
    deleted = await require_images(cluster).delete(cluster.name, images)
    ctx.emit(ResourcesDeleted(tuple(deleted)))
    return True
