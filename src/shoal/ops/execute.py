"""Runs a command on a cluster's head, so that `ray.init()` in it finds the cluster."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.cluster.handle import ClusterHandle, RunEnv, check_run_env
from shoal.core.errors import ConfigError
from shoal.core.events import CommandDetached, Output
from shoal.ops import multiplexer
from shoal.ops.context import Context
from shoal.ops.multiplexer import Multiplexer
from shoal.providers.model import Instance
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.runner import Completed, PortForward, PreconditionFailedError, Runner, Stream
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
    forwards: Sequence[PortForward] = ()
    run_env: RunEnv = "auto"


async def execute(ctx: Context, spec: ClusterSpec, command: str, options: ExecOptions) -> int:
    """Run a command and return its exit code."""
    check(ctx, spec, options)
    if not options.start and not options.stop:
        return await perform(ctx, spec, command, options)
    from shoal.ops.ephemeral_cluster import (
        ephemeral_cluster,  # a third of all modules, which few commands need
    )

    async with ephemeral_cluster(ctx, spec, start=options.start, stop=options.stop):
        return await perform(ctx, spec, command, options)


def check(ctx: Context, spec: ClusterSpec, options: ExecOptions) -> None:
    """Raise `ConfigError` for what cannot be done with these options on this cluster."""
    check_run_env(spec, options.run_env)
    program = options.multiplexer
    if program is None:
        return
    multiplexer.check_makes_sense(ClusterHandle.of(ctx, spec), program)
    if options.stop:
        raise ConfigError(
            f"--stop does not go with --{program}",
            why="the command goes on when this program has ended, and nobody would end the cluster",
            fix="leave one of them out",
        )
    if options.forwards:
        raise ConfigError(
            f"--port-forward does not go with --{program}",
            why="ports are led here only while this program runs",
            fix=f"shoal attach --{program} --port-forward",
        )


async def perform(ctx: Context, spec: ClusterSpec, command: str, options: ExecOptions) -> int:
    """Run a command on a cluster that is up."""
    if options.multiplexer is not None:
        await _detach(ctx, spec, command, options, options.multiplexer)
        return 0
    if options.streams == "events":
        return (await run(ctx, spec, command, run_env=options.run_env)).code
    cluster = ClusterHandle.of(ctx, spec)
    if presumed := cluster.fixed_head(options.run_env):
        # Spares a look. If it is not the head, looking tells what is.
        with contextlib.suppress(PreconditionFailedError):
            return await _attach(cluster, command, options, *presumed)
    return await _attach(cluster, command, options, await cluster.head())


async def _attach(
    cluster: ClusterHandle,
    command: str,
    options: ExecOptions,
    head: Instance,
    precondition: str = "",
) -> int:
    start = cluster.ray_start(head, head)
    return await cluster.node_runner(head, options.run_env).attach(
        start.with_prelude(command),
        env=start.session_env(),
        tty=options.streams == "terminal",
        forwards=options.forwards,
        precondition=precondition,
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
        start.with_prelude(command), env=start.session_env(), on_line=deliver, timeout=timeout
    )


async def _detach(
    ctx: Context, spec: ClusterSpec, command: str, options: ExecOptions, program: Multiplexer
) -> None:
    runner, start = await _head(ctx, spec, options.run_env)
    await multiplexer.start_detached(
        runner, program, start.with_prelude(command), start.session_env(), node="head"
    )
    how = f"shoal attach {shlex.quote(spec.cluster_name)} --{program}"
    if options.run_env == "host":
        how += " --run-env host"
    ctx.emit(CommandDetached("head", program, how))


async def _head(ctx: Context, spec: ClusterSpec, run_env: RunEnv) -> tuple[Runner, RayStart]:
    cluster = ClusterHandle.of(ctx, spec)
    head = await cluster.head()
    return cluster.node_runner(head, run_env), cluster.ray_start(head, head)
