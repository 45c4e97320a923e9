"""The addresses of a cluster's nodes, as this machine can use them."""

from __future__ import annotations

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import NotFoundError
from shoal.ops.context import Context
from shoal.providers.model import Instance
from shoal.spec.cluster_spec import ClusterSpec


async def head_address(ctx: Context, spec: ClusterSpec) -> str:
    """The head's address, public where it has one."""
    return _address(await ClusterHandle.of(ctx, spec).head())


async def worker_addresses(ctx: Context, spec: ClusterSpec) -> list[str]:
    """The workers' addresses. A cluster without machines has none to tell, one without workers
    has an empty list."""
    instances = await ClusterHandle.of(ctx, spec).provider.find(spec.cluster_name)
    if not instances:
        raise NotFoundError(f"cluster {spec.cluster_name} is not up", fix="shoal up")
    return [_address(i) for i in instances if i.role == "worker"]


def _address(instance: Instance) -> str:
    return instance.public_address or instance.address
