"""What a user would lose with some nodes: the work that runs on them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ShoalError
from shoal.ops.context import Context
from shoal.providers.model import Instance, State, head_of
from shoal.ray_runtime.nodes import RayNode

_log = logging.getLogger(__name__)


async def describe_running_work(
    ctx: Context, cluster: ClusterHandle, instances: Sequence[Instance], outlook: str = "is lost"
) -> str:
    """A line that names the busy nodes among `instances` and says what becomes of their work, to be
    shown before a question; empty if none is busy, or if no user is asked."""
    head = head_of(await cluster.instances()) if ctx.asks and instances else None
    if head is None or head.state is not State.RUNNING:
        return ""
    try:
        ray_nodes = await cluster.list_nodes(head)
    except ShoalError as error:
        _log.info("could not find out which nodes are busy: %s", error)
        return ""
    busy = [
        f"{i.name} ({used})"
        for i in instances
        if i.id in ray_nodes and (used := _in_use(ray_nodes[i.id]))
    ]
    if not busy:
        return ""
    return f"The work on these nodes {outlook}: {', '.join(busy)}.\n"


def _in_use(node: RayNode) -> str:
    """The CPUs, GPUs and custom resources in use."""
    used = {name: total - node.available.get(name, 0.0) for name, total in node.total.items()}
    return ", ".join(
        f"{amount:g} {name} in use"
        for name, amount in sorted(used.items())
        if amount > 0 and not name.startswith("node:") and "memory" not in name
    )
