"""Bakes the images that a cluster file asks for, with a cluster that exists only for this."""

from __future__ import annotations

from dataclasses import replace

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, IncompleteError
from shoal.core.events import Stage, Unchanged
from shoal.core.polling import PollUntilDeadline
from shoal.ops.context import Context, always_yes
from shoal.ops.down import down
from shoal.ops.images import require_images
from shoal.ops.up import UpOptions, up
from shoal.providers.baked_images import NodeImage
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.loading import SourceOf, unknown_source

# A snapshot of a large disk takes long.
_IMAGE_SECONDS = 7200.0
_PAUSE_SECONDS = 5.0


async def bake(ctx: Context, spec: ClusterSpec, source_of: SourceOf = unknown_source) -> bool:
    """Bring up one node of each type that has no image, wait until their images are complete, and
    terminate them. False if the user declined."""
    spec = replace(spec, shoal=replace(spec.shoal, bake=True, autostop=0.0))
    cluster = ClusterHandle.of(ctx, spec)
    images = require_images(cluster)
    hashes = cluster.setup_hashes
    found = await images.node_images(spec, hashes)
    missing = [i for i in found if hashes[i.node_type, i.role] and i.baked is None]
    if not missing:
        ctx.emit(Unchanged(spec.cluster_name, "it has all images that its file asks for"))
        return True
    if await cluster.instances():
        raise ConfigError(
            f"cluster {spec.cluster_name} is up",
            why="images are made of new nodes only: the disks of its nodes have its secrets",
            fix="let the next new node of each type become an image: shoal: {bake: true} in the "
            "file, and shoal up CLUSTER\nor shoal down CLUSTER, and repeat this",
        )
    confirmed = replace(ctx, confirm=always_yes, asks=False)
    is_up = False
    try:
        result = await up(ctx, _one_of_each(spec, missing), UpOptions(source_of=source_of))
        is_up = result.plan is not None
        if is_up:
            await _wait_for_images(ctx, cluster)
        return is_up
    finally:
        if is_up or await cluster.instances():
            await down(confirmed, spec)


def _one_of_each(spec: ClusterSpec, missing: list[NodeImage]) -> ClusterSpec:
    """The spec of a cluster with a worker of each of these types and nothing else."""
    wanted = {image.node_type for image in missing if image.role == "worker"}
    types = {
        name: replace(t, min_workers=1 if name in wanted else 0)
        for name, t in spec.node_types.items()
    }
    return replace(
        spec,
        node_types=types,
        scaling=replace(
            spec.scaling,
            max_workers=max(spec.scaling.max_workers, len(wanted)),
            initial_workers=None,
        ),
        shoal=replace(spec.shoal, controller=False),
    )


async def _wait_for_images(ctx: Context, cluster: ClusterHandle) -> None:
    images, hashes = require_images(cluster), cluster.setup_hashes
    ctx.emit(Stage("waiting for the images"))
    pending: list[str] = []
    async for _ in PollUntilDeadline(ctx.clock, _IMAGE_SECONDS, _PAUSE_SECONDS):
        found = await images.node_images(cluster.spec, hashes)
        wanted = [i for i in found if hashes[i.node_type, i.role]]
        pending = [i.node_type for i in wanted if i.baked and i.baked.state == "pending"]
        if pending:
            continue
        if failed := sorted({i.node_type for i in wanted if i.baked is None}):
            raise IncompleteError(
                f"there is no image of {', '.join(failed)}",
                why="it could not be created, or AWS could not complete it: see the warnings",
                fix="shoal bake CLUSTER",
            )
        for image in wanted:
            assert image.baked is not None
            ctx.emit(Stage(f"{image.node_type} ({image.role}) starts from {image.baked.id}"))
        return
    raise IncompleteError(
        f"the images of {', '.join(sorted(set(pending)))} are not complete",
        why=f"AWS took more than {_IMAGE_SECONDS:.0f} s",
        fix="they may still become complete: shoal plan CLUSTER",
    )
