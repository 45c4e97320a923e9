"""Runs a command on a cluster's head, so that `ray.init()` in it finds the cluster."""

from __future__ import annotations

from shoal.events import Output
from shoal.ops.context import Context
from shoal.ops.site import Site
from shoal.providers.base import RayStart
from shoal.remote.base import Completed, Runner, Stream
from shoal.spec.model import ClusterSpec


async def attach(ctx: Context, spec: ClusterSpec, command: str, *, tty: bool) -> int:
    """Run a command with this process's own terminal, and return its exit code."""
    runner, start = await _head(ctx, spec)
    return await runner.attach(start.command(command), env=start.driver_env(), tty=tty)


async def run(
    ctx: Context, spec: ClusterSpec, command: str, *, timeout: float | None = None
) -> Completed:
    """Run a command, its lines arriving as events."""
    runner, start = await _head(ctx, spec)

    def deliver(line: str, stream: Stream) -> None:
        ctx.emit(Output("head", line, stream))

    return await runner.run(
        start.command(command), env=start.driver_env(), on_line=deliver, timeout=timeout
    )


async def _head(ctx: Context, spec: ClusterSpec) -> tuple[Runner, RayStart]:
    site = Site.of(ctx, spec)
    head = await site.head()
    return site.provider.runner(spec, head), site.provider.ray_start(spec, head, head)
