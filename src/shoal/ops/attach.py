"""Opens a shell on a node, with what Ray needs in its environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.cluster.handle import ClusterHandle, RunEnv, check_run_env
from shoal.core.errors import ConfigError
from shoal.ops import multiplexer
from shoal.ops.context import Context
from shoal.ops.multiplexer import Multiplexer
from shoal.remote.runner import PortForward
from shoal.spec.cluster_spec import ClusterSpec

_LOGIN_SHELL = 'exec "${SHELL:-bash}" -l'


@dataclass(frozen=True)
class ShellOptions:
    """What kind of shell: a plain one, or in a session that outlives the connection, which is
    found again unless it is to be `new`."""

    multiplexer: Multiplexer | None = None
    new: bool = False


async def attach(
    ctx: Context,
    spec: ClusterSpec,
    shell: ShellOptions,
    *,
    tty: bool,
    node: str | None = None,
    forwards: Sequence[PortForward] = (),
    run_env: RunEnv = "auto",
) -> int:
    """Open a shell on the head, or on the node with this address or name, in this process's own
    terminal. Without a terminal the shell reads its commands from standard input."""
    check_run_env(spec, run_env)
    cluster = ClusterHandle.of(ctx, spec)
    program = shell.multiplexer
    if program is not None:
        multiplexer.check_makes_sense(cluster, program)
        if not tty:
            raise ConfigError(
                f"{program} needs a terminal",
                why="standard input is none",
                fix="shoal exec runs a command without one",
            )
    head = await cluster.head()
    instance = head if node is None else await cluster.instance_named(node)
    runner = cluster.node_runner(instance, run_env)
    start = cluster.ray_start(instance, head)
    command: str | None = None
    if program is not None:
        await multiplexer.check_there(runner, program, node=instance.name)
        command = start.with_prelude(multiplexer.attach_command(program, new=shell.new))
    elif start.prelude:
        command = start.with_prelude(_LOGIN_SHELL)
    return await runner.attach(command, env=start.session_env(), tty=tty, forwards=forwards)
