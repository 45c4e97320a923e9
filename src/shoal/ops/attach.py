"""Opens a shell on a node in which Ray finds the cluster."""

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

# bash runs this before each prompt, after all startup files, which usually set PS1.
_PROMPT_COMMAND = 'case $PS1 in "($SHOAL_CLUSTER)"*) ;; *) PS1="($SHOAL_CLUSTER) $PS1" ;; esac'

_LOGIN_SHELL = 'exec "${SHELL:-bash}" -l'


@dataclass(frozen=True)
class ShellOptions:
    """A plain login shell, or a session in a multiplexer: an existing one unless `new`."""

    multiplexer: Multiplexer | None = None
    new: bool = False


async def attach(
    ctx: Context,
    spec: ClusterSpec,
    options: ShellOptions,
    *,
    tty: bool,
    node: str | None = None,
    forwards: Sequence[PortForward] = (),
    run_env: RunEnv = "auto",
) -> int:
    """Open a shell on the head, or on the node with this address or name, and return its exit
    code. Without a terminal, the shell reads commands from standard input."""
    check_run_env(spec, run_env)
    cluster = ClusterHandle.of(ctx, spec)
    program = options.multiplexer
    if program is not None:
        multiplexer.check_supported(cluster, program)
        if not tty:
            raise ConfigError(
                f"{program} needs a terminal",
                why="standard input is not a terminal",
                fix="run a command without a terminal: shoal exec CLUSTER 'ray status'",
            )
    head = await cluster.head()
    instance = head if node is None else await cluster.instance_named(node)
    runner = cluster.node_runner(instance, run_env)
    start = cluster.ray_start(instance, head)
    command: str | None = None
    if program is not None:
        await multiplexer.check_installed(runner, program, node=instance.name)
        command = start.with_session(multiplexer.attach_command(program, new=options.new))
    elif start.prelude:
        command = start.with_session(_LOGIN_SHELL)
    label = spec.cluster_name if node is None else f"{spec.cluster_name} {instance.name}"
    env = {**start.session_env(), "SHOAL_CLUSTER": label, "PROMPT_COMMAND": _PROMPT_COMMAND}
    return await runner.attach(command, env=env, tty=tty, forwards=forwards)
