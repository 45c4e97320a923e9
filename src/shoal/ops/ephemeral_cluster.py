"""A cluster for the duration of one command: `--start` brings it up, `--stop` terminates it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from shoal.cluster.handle import ClusterHandle
from shoal.ops.context import Context, always_yes
from shoal.ops.down import down
from shoal.ops.up import UpOptions, up
from shoal.spec.cluster_spec import ClusterSpec


@contextlib.asynccontextmanager
async def ephemeral_cluster(
    ctx: Context, spec: ClusterSpec, *, start: bool, stop: bool, applied: UpOptions | None = None
) -> AsyncIterator[None]:
    """With `start`, bring the cluster up first unless Ray runs on its head; with `applied`, also
    where it runs, so that options such as --autostop apply. With `stop`, terminate it afterwards,
    also after a failure, an interrupt or an unfinished `up`. None asks for confirmation: the flags
    are the confirmation."""
    confirmed = replace(ctx, confirm=always_yes, asks=False)
    try:
        if start and (applied is not None or not await _is_running(ctx, spec)):
            await up(confirmed, spec, applied or UpOptions())
        yield
    finally:
        if stop:
            await down(confirmed, spec)


async def _is_running(ctx: Context, spec: ClusterSpec) -> bool:
    """Whether Ray runs on the head."""
    observed = await ClusterHandle.of(ctx, spec).observe()
    return any(
        i.role == "head" and observed.probes[i.id].ray_runs
        for i in observed.instances
        if i.id in observed.probes
    )
