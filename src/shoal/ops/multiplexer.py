"""Terminal sessions on a machine that outlive the connection to it: screen and tmux.

Either keeps a server that may be older than the cluster, so a session cannot count on inheriting
an environment: what it needs waits in a file that it reads, and that is gone once read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import ConfigError, SetupError
from shoal.remote.runner import Runner, quote

Multiplexer = Literal["screen", "tmux"]

_MISSING = 69
_SECONDS = 60.0

# What a session begins with. A login shell, since the server's environment may be an old one.
_SESSION = """bash --login -i -c '. "$0"' "$file\""""
_NEW_DETACHED = {
    "screen": f"screen -L -dm {_SESSION}",
    "tmux": f"tmux new-session -d {_SESSION}",
}
_NEW_ATTACHED = {
    "screen": f"exec screen -L {_SESSION}",
    "tmux": f"exec tmux new-session {_SESSION}",
}
_ATTACH = {
    "screen": "if screen -ls | grep -q '[(].*tached)'; then exec screen -x; fi",
    "tmux": "if tmux has-session 2>/dev/null; then exec tmux attach-session; fi",
}
_SHELL = 'cd\nexec "${SHELL:-bash}" -l\n'


def check_makes_sense(cluster: ClusterHandle, program: Multiplexer) -> None:
    """Raise `ConfigError` on a cluster whose head is this machine."""
    if cluster.capabilities.shares_this_machine:
        raise ConfigError(
            f"an embedded cluster needs no {program} of its own",
            why="its head is this machine, and no connection to it can be lost",
            fix=f"start {program} here, and in it: shoal exec, or shoal attach",
        )


async def start_detached(
    runner: Runner, program: Multiplexer, command: str, env: Mapping[str, str], *, node: str
) -> None:
    """Run a command in a new session. When it ends, its output stays, with a shell below it."""
    script = f'cd\n(\n{command}\n)\necho "[ended with exit code $?]"\n{_SHELL}'
    done = await runner.run(
        f"{_require(program)}{_leave(script)}{_NEW_DETACHED[program]}",
        env=env,
        timeout=_SECONDS,
    )
    if done.code == _MISSING:
        raise _missing(program, node)
    if not done.ok:
        raise SetupError(f"{program} does not start", node=node, output=done.tail)


async def check_there(runner: Runner, program: Multiplexer, *, node: str) -> None:
    """Raise `ConfigError` when the machine does not have the program."""
    if (await runner.run(_require(program), timeout=_SECONDS)).code == _MISSING:
        raise _missing(program, node)


def attach_command(program: Multiplexer, *, new: bool) -> str:
    """The command that shows a session in the terminal: one that is there, or a new one."""
    there = "" if new else f"{_ATTACH[program]}\n"
    return f"{there}{_leave(_SHELL)}{_NEW_ATTACHED[program]}"


def _leave(script: str) -> str:
    """Shell text that leaves a session's file: PATH, Ray's variables and ours, by which the cluster
    is known to be in use, as they are now, then what is to be run."""
    variables = 'PATH "${!RAY_@}" "${!SHOAL_@}"'
    what = f"printf 'rm -f -- %q\\n' \"$file\"; declare -p {variables}; {_print(script)}"
    return f'file=$(mktemp) || exit 1\n{{ {what}; }} >"$file"\n'


def _print(text: str) -> str:
    return quote(["printf", "%s", text])


def _require(program: Multiplexer) -> str:
    return f"command -v {program} >/dev/null || exit {_MISSING}\n"


def _missing(program: Multiplexer, node: str) -> ConfigError:
    return ConfigError(
        f"there is no {program} on the machine",
        why=f"--{program} runs things in it",
        fix=f"install it there: shoal exec 'sudo apt-get install -y {program}'",
        node=node,
    )
