"""Runs a command on a cluster's head, so that `ray.init()` in it finds the cluster."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.cluster.handle import ClusterHandle, RunEnv, check_run_env
from shoal.core.errors import ConfigError
from shoal.core.events import Detached, Output
from shoal.ops import multiplexer
from shoal.ops.context import Context
from shoal.ops.multiplexer import Multiplexer
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Completed, Forward, PreconditionFailedError, Runner, Stream
from shoal.spec.cluster_spec import ClusterSpec

# A terminal of the command's own, our streams as they are, or lines that arrive as events.
Streams = Literal["terminal", "raw", "events"]


@dataclass(frozen=True)
class ExecOptions:
    """How a command is run: where its output goes, whether the cluster is brought up for it and
    ended after it, in which session that goes on without us, and with which ports led here."""

    streams: Streams = "raw"
    start: bool = False
    stop: bool = False
    multiplexer: Multiplexer | None = None
    forwards: Sequence[Forward] = ()
    run_env: RunEnv = "auto"


async def execute(ctx: Context, spec: ClusterSpec, command: str, manner: ExecOptions) -> int:
    """Run a command in this manner and return its exit code."""
    check(spec, manner)
    if not manner.start and not manner.stop:
        return await perform(ctx, spec, command, manner)
    from shoal.ops.ephemeral_cluster import (
        ephemeral_cluster,  # a third of all modules, which few commands need
    )

    async with ephemeral_cluster(ctx, spec, start=manner.start, stop=manner.stop):
        return await perform(ctx, spec, command, manner)


def check(spec: ClusterSpec, manner: ExecOptions) -> None:
    """Raise `ConfigError` for what cannot be done in this manner on this cluster."""
    check_run_env(spec, manner.run_env)
    program = manner.multiplexer
    if program is None:
        return
    multiplexer.check_makes_sense(spec, program)
    if manner.stop:
        raise ConfigError(
            f"--stop does not go with --{program}",
            why="the command goes on when this program has ended, and nobody would end the cluster",
            fix="leave one of them out",
        )
    if manner.forwards:
        raise ConfigError(
            f"--port-forward does not go with --{program}",
            why="ports are led here only while this program runs",
            fix=f"shoal attach --{program} --port-forward",
        )


async def perform(ctx: Context, spec: ClusterSpec, command: str, manner: ExecOptions) -> int:
    """Run a command on a cluster that is up."""
    if manner.multiplexer is not None:
        await _detach(ctx, spec, command, manner, manner.multiplexer)
        return 0
    if manner.streams == "events":
        return (await run(ctx, spec, command, run_env=manner.run_env)).code
    site = ClusterHandle.of(ctx, spec)
    if presumed := site.presumed_head(manner.run_env):
        # Spares a look. If it is not the head, looking tells what is.
        with contextlib.suppress(PreconditionFailedError):
            return await _attach(site, command, manner, *presumed)
    return await _attach(site, command, manner, await site.head())


async def _attach(
    site: ClusterHandle, command: str, manner: ExecOptions, head: Instance, only_if: str = ""
) -> int:
    start = site.provider.ray_start(site.spec, head, head)
    return await site.inside(head, manner.run_env).attach(
        start.command(command),
        env=start.session_env(),
        tty=manner.streams == "terminal",
        forwards=manner.forwards,
        only_if=only_if,
    )


async def run(
    ctx: Context,
    spec: ClusterSpec,
    command: str,
    *,
    timeout: float | None = None,
    run_env: RunEnv = "auto",
) -> Completed:
    """Run a command, its lines arriving as events."""
    runner, start = await _head(ctx, spec, run_env)

    def deliver(line: str, stream: Stream) -> None:
        ctx.emit(Output("head", line, stream))

    return await runner.run(
        start.command(command), env=start.session_env(), on_line=deliver, timeout=timeout
    )


async def _detach(
    ctx: Context, spec: ClusterSpec, command: str, manner: ExecOptions, program: Multiplexer
) -> None:
    runner, start = await _head(ctx, spec, manner.run_env)
    await multiplexer.start_detached(
        runner, program, start.command(command), start.session_env(), node="head"
    )
    how = f"shoal attach {shlex.quote(spec.cluster_name)} --{program}"
    if manner.run_env == "host":
        how += " --run-env host"
    ctx.emit(Detached("head", program, how))


async def _head(ctx: Context, spec: ClusterSpec, run_env: RunEnv) -> tuple[Runner, RayStart]:
    site = ClusterHandle.of(ctx, spec)
    head = await site.head()
    return site.inside(head, run_env), site.provider.ray_start(spec, head, head)
