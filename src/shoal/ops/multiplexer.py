"""Terminal sessions on a node that survive disconnects, in screen or tmux."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, SetupError
from shoal.remote.runner import Runner, quote
from shoal.remote.scripts import read_script

Multiplexer = Literal["screen", "tmux"]

_SCRIPT = "multiplexer_session.sh"
_NOT_INSTALLED = 69  # the exit code of the script
_TIMEOUT_SECONDS = 60.0


def check_supported(cluster: ClusterHandle, program: Multiplexer) -> None:
    """Raise `ConfigError` on an embedded cluster."""
    if cluster.capabilities.shares_this_machine:
        raise ConfigError(
            f"--{program} is not supported on an embedded cluster",
            why="its head is this machine, so there is no connection to lose",
            fix=f"run shoal exec or shoal attach in a local {program}",
        )


async def start_detached(
    runner: Runner, program: Multiplexer, command: str, env: Mapping[str, str], *, node: str
) -> None:
    """Run a command in a new session. The session stays open after the command ends, with its
    output and a shell."""
    result = await runner.run(
        _script(program, "detached", command), env=env, timeout=_TIMEOUT_SECONDS
    )
    if result.code == _NOT_INSTALLED:
        raise _not_installed(program, node)
    if not result.ok:
        raise SetupError(f"could not start {program}", node=node, output=result.tail)


async def check_installed(runner: Runner, program: Multiplexer, *, node: str) -> None:
    """Raise `ConfigError` if the program is not installed on the node."""
    command = f"command -v {program} >/dev/null || exit {_NOT_INSTALLED}"
    if (await runner.run(command, timeout=_TIMEOUT_SECONDS)).code == _NOT_INSTALLED:
        raise _not_installed(program, node)


def attach_command(program: Multiplexer, *, new: bool) -> str:
    """The command that attaches the terminal to an existing session, or to a new one."""
    return _script(program, "new" if new else "attached")


def _script(*arguments: str) -> str:
    text = read_script("shoal.ops.scripts", _SCRIPT)
    return quote(["bash", "-c", text, _SCRIPT, *arguments])


def _not_installed(program: Multiplexer, node: str) -> ConfigError:
    return ConfigError(
        f"{program} is not installed",
        why=f"--{program} requires it on the node",
        fix=f"install it: shoal exec CLUSTER 'sudo apt-get install -y {program}'",
        node=node,
    )
