"""A cluster that is up for the length of something: brought up before, given back after."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from shoal.cluster.handle import ClusterHandle
from shoal.ops.context import Context
from shoal.ops.down import down
from shoal.ops.up import up
from shoal.spec.cluster_spec import ClusterSpec


@contextlib.asynccontextmanager
async def ephemeral_cluster(
    ctx: Context, spec: ClusterSpec, *, start: bool, stop: bool
) -> AsyncIterator[None]:
    """With `start`, bring the cluster up first if it is not. With `stop`, end it afterwards,
    whatever happened in between: a failure, an interrupt, a bring-up that was never finished.
    Neither asks: who says so on the command line has answered."""
    unasked = replace(ctx, confirm=lambda question: True)
    try:
        if start and not await _runs(ctx, spec):
            await up(unasked, spec)
        yield
    finally:
        if stop:
            await down(unasked, spec)


async def _runs(ctx: Context, spec: ClusterSpec) -> bool:
    """Whether the head is there and its Ray runs."""
    observed = await ClusterHandle.of(ctx, spec).observe()
    return any(
        i.role == "head" and observed.probes[i.id].ray_runs
        for i in observed.instances
        if i.id in observed.probes
    )
