"""Looks at a cluster again and again."""

from __future__ import annotations

from collections.abc import Callable

from shoal.ops.context import Context
from shoal.ops.status import ClusterStatus, status
from shoal.spec.cluster_spec import ClusterSpec


async def watch(
    ctx: Context, spec: ClusterSpec, show: Callable[[ClusterStatus], None], *, every: float
) -> None:
    """Give `show` the cluster's state, and again every so many seconds, until cancelled."""
    while True:
        show(await status(ctx, spec))
        await ctx.clock.sleep(every)
