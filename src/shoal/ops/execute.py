"""Runs a command on a cluster's head, so that `ray.init()` in it finds the cluster."""

from __future__ import annotations

from collections.abc import Mapping

from shoal import providers
from shoal.errors import NotFoundError
from shoal.events import Output
from shoal.ops.context import Context
from shoal.remote.base import Completed, Runner, Stream
from shoal.spec.model import ClusterSpec


async def attach(ctx: Context, spec: ClusterSpec, command: str, *, tty: bool) -> int:
    """Run a command with this process's own terminal, and return its exit code."""
    runner, env = await _head(ctx, spec)
    return await runner.attach(command, env=env, tty=tty)


async def run(
    ctx: Context, spec: ClusterSpec, command: str, *, timeout: float | None = None
) -> Completed:
    """Run a command, its lines arriving as events."""
    runner, env = await _head(ctx, spec)

    def deliver(line: str, stream: Stream) -> None:
        ctx.emit(Output("head", line, stream))

    return await runner.run(command, env=env, on_line=deliver, timeout=timeout)


async def _head(ctx: Context, spec: ClusterSpec) -> tuple[Runner, Mapping[str, str]]:
    provider = providers.provider_for(spec, ctx.home, ctx.clock)
    instances = await provider.find(spec.cluster_name)
    head = next((i for i in instances if i.role == "head"), None)
    if head is None:
        raise NotFoundError(
            f"cluster {spec.cluster_name} is not up",
            why="it has no head to run the command on",
            fix=f"shoal up {spec.cluster_name}",
        )
    start = provider.ray_start(spec, head, head)
    return provider.runner(spec, head), start.driver_env()
