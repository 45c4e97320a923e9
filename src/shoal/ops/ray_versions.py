"""Which Ray the machines of a cluster have: one that has another than its head cannot join."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.cluster.handle import ClusterHandle
from shoal.core.concurrency import run_all
from shoal.providers.model import Instance


async def differing(
    cluster: ClusterHandle, head: Instance, workers: Sequence[Instance]
) -> dict[str, str]:
    """Those of the workers, by id, that have another Ray than the head, in words. One that does
    not say what it has is not among them."""
    if not workers:
        return {}
    heads, *theirs = await run_all(cluster.ray_version(i, head) for i in (head, *workers))
    return {
        worker.id: f"it has Ray {version}, and the head has {heads}"
        for worker, version in zip(workers, theirs, strict=True)
        if heads and version and version != heads
    }
