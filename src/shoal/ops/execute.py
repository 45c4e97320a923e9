"""Runs a command on a cluster's head, where `ray.init()` finds the cluster."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal.cluster.handle import ClusterHandle, RunEnv, check_run_env
from shoal.core.errors import ConfigError, ShoalError, UnreachableError
from shoal.ops import multiplexer
from shoal.ops.context import Context
from shoal.ops.multiplexer import Multiplexer
from shoal.providers.model import Instance, State
from shoal.remote.runner import (
    Completed,
    OnBytes,
    PortForward,
    PreconditionFailedError,
    Stream,
    quote,
)
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# How the command's streams are connected: to our terminal, to our streams unchanged, or as events.
Streams = Literal["terminal", "raw", "events"]

# The exit code of a command that Ctrl-C ended.
_INTERRUPTED = 130
# The exit code of a shell for a command that does not exist.
_NOT_FOUND = 127
_REMOVED_FROM_RAY = re.compile(r"(?:^|[\s;&|])rllib\s")


_ENDED = {
    State.TERMINATED: "terminated",
    State.TERMINATING: "terminated",
    State.STOPPED: "stopped",
    State.STOPPING: "stopped",
}


@dataclass(frozen=True)
class ExecOptions:
    """How to run a command: where its output goes, whether to bring the cluster up before and
    terminate it after, whether to detach it in a multiplexer, and which ports to forward."""

    streams: Streams = "raw"
    start: bool = False
    stop: bool = False
    multiplexer: Multiplexer | None = None
    forwards: Sequence[PortForward] = ()
    run_env: RunEnv = "auto"
    code: Path | None = None
    requirements: Path | None = None


async def execute(ctx: Context, spec: ClusterSpec, command: str, options: ExecOptions) -> int:
    """Run a command with these options and return its exit code."""
    check(ctx, spec, options)
    if not options.start and not options.stop:
        return await perform(ctx, spec, command, options)
    from shoal.ops.ephemeral_cluster import (
        ephemeral_cluster,  # imports many modules that few commands need
    )

    async with ephemeral_cluster(ctx, spec, start=options.start, stop=options.stop):
        return await perform(ctx, spec, command, options)


def check(ctx: Context, spec: ClusterSpec, options: ExecOptions) -> None:
    """Raise `ConfigError` for options that conflict, or that this cluster does not support."""
    check_run_env(spec, options.run_env)
    program = options.multiplexer
    if program is None:
        return
    multiplexer.check_supported(ClusterHandle.of(ctx, spec), program)
    if options.stop:
        raise ConfigError(
            f"--stop cannot be combined with --{program}",
            why="the command keeps running after this program exits",
            fix="omit one of them",
        )
    if options.forwards:
        ports = " ".join(f"--port-forward {f.local}:{f.remote}" for f in options.forwards)
        raise ConfigError(
            f"--port-forward cannot be combined with --{program}",
            why="ports are forwarded only while this program runs",
            fix=f"shoal attach CLUSTER --{program} {ports}",
        )


def chosen_code(
    spec: ClusterSpec, code: Path | None, requirements: Path | None
) -> tuple[Path | None, Path | None]:
    """What was given, or what the cluster's file says."""
    settings = spec.shoal
    if code is None and settings.code:
        code = Path(settings.code)
    if requirements is None and settings.requirements:
        requirements = Path(settings.requirements)
    return code, requirements


async def perform(ctx: Context, spec: ClusterSpec, command: str, options: ExecOptions) -> int:
    """Run a command on a cluster that is up."""
    code, requirements = chosen_code(spec, options.code, options.requirements)
    if code is not None:
        from shoal.ops.code_session import command_with_code

        command = await command_with_code(ctx, spec, command, code, requirements)
    if options.multiplexer is not None:
        await _detach(ctx, spec, command, options, options.multiplexer)
        return 0
    if options.streams == "events":
        return (await run(ctx, spec, command, run_env=options.run_env)).code
    cluster = ClusterHandle.of(ctx, spec)
    if fixed_head := cluster.fixed_head(options.run_env):
        # Saves listing the instances. The command itself checks that it runs on the head.
        try:
            return await _attach(ctx, cluster, command, options, *fixed_head)
        except PreconditionFailedError:
            _log.info("%s is not the head: listing instances", fixed_head[0].address)
    return await _attach(ctx, cluster, command, options, await cluster.head())


async def _attach(
    ctx: Context,
    cluster: ClusterHandle,
    command: str,
    options: ExecOptions,
    head: Instance,
    precondition: str = "",
) -> int:
    start, began = cluster.ray_start(head, head), ctx.clock.monotonic()
    try:
        code = await cluster.node_runner(head, options.run_env).attach(
            start.with_session(command),
            env=start.session_env(),
            tty=options.streams == "terminal",
            forwards=options.forwards,
            precondition=precondition,
        )
    except UnreachableError as error:
        raise await _explained(cluster, head, error) from error
    await _explain_failure(ctx, cluster, head, command, code, ctx.clock.monotonic() - began)
    return code


async def _explained(
    cluster: ClusterHandle, head: Instance, error: UnreachableError
) -> UnreachableError:
    """The error of a lost connection, or what happened to the head, if the provider knows."""
    if not cluster.capabilities.costs_money:
        return error
    try:
        states = {i.id: i.state for i in await cluster.instances()}
    except ShoalError as failure:
        _log.info("could not look up the head's state: %s", failure)
        return error
    state = states.get(head.id, State.TERMINATED)
    if state in (State.PENDING, State.RUNNING, State.UNREACHABLE):
        return error
    return UnreachableError(
        f"the head was {_ENDED.get(state, state)} while the command ran",
        why=f"{head.id} is {state}",
        fix="start the cluster again: shoal up CLUSTER",
        node=head.name,
        output=error.output,
    )


async def _explain_failure(
    ctx: Context, cluster: ClusterHandle, head: Instance, command: str, code: int, seconds: float
) -> None:
    """If a command that ran for so long failed because its cluster was lost, or because Ray no
    longer has it, say so."""
    if code == _NOT_FOUND and _REMOVED_FROM_RAY.search(command):
        from shoal.core.events import Warned

        ctx.emit(
            Warned(
                "Ray has no `rllib` command since version 2.41",
                fix="train from a script: see examples/rllib/train.py, which uses PPOConfig",
            )
        )
        return
    if code not in (0, _INTERRUPTED):
        from shoal.ops.head_restart import warn_if_cluster_was_lost  # slow, and rarely needed

        await warn_if_cluster_was_lost(ctx, cluster, head, seconds)


async def run(
    ctx: Context,
    spec: ClusterSpec,
    command: str,
    *,
    timeout: float | None = None,
    run_env: RunEnv = "auto",
    on_bytes: OnBytes | None = None,
) -> Completed:
    """Run a command on the head, with its output as `Output` events and unchanged to `on_bytes`.
    If the head is this machine, it runs in the current directory, as an attached command does."""
    if "\0" in command:
        raise ConfigError("a command cannot contain a NUL character")
    cluster, head = await _head(ctx, spec)
    start, began = cluster.ray_start(head, head), ctx.clock.monotonic()
    in_directory = command
    if cluster.capabilities.shares_this_machine:
        in_directory = f"{quote(['cd', str(Path.cwd())])} || exit\n{command}"

    from shoal.core.events import Output  # slow to import, and an attached command has no events

    def emit_line(line: str, stream: Stream) -> None:
        ctx.emit(Output("head", line, stream))

    try:
        done = await cluster.node_runner(head, run_env).run(
            start.with_session(in_directory),
            env=start.session_env(),
            on_line=emit_line,
            on_bytes=on_bytes,
            timeout=timeout,
        )
    except UnreachableError as error:
        raise await _explained(cluster, head, error) from error
    except TimeoutError:
        what = f"the command did not end within {timeout:g} s"
        raise ShoalError(what, why=command, fix="allow more time", node="head") from None
    await _explain_failure(ctx, cluster, head, command, done.code, ctx.clock.monotonic() - began)
    return done


async def _detach(
    ctx: Context, spec: ClusterSpec, command: str, options: ExecOptions, program: Multiplexer
) -> None:
    cluster, head = await _head(ctx, spec)
    start = cluster.ray_start(head, head)
    runner = cluster.node_runner(head, options.run_env)
    await multiplexer.start_detached(
        runner, program, start.with_session(command), start.session_env(), node="head"
    )
    attach = f"shoal attach {shlex.quote(spec.cluster_name)} --{program}"
    if options.run_env == "host":
        attach += " --run-env host"
    from shoal.core.events import CommandDetached

    ctx.emit(CommandDetached("head", program, attach))


async def _head(ctx: Context, spec: ClusterSpec) -> tuple[ClusterHandle, Instance]:
    cluster = ClusterHandle.of(ctx, spec)
    return cluster, await cluster.head()
