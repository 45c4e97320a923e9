"""The shared options of `exec`, `submit` and `attach`, named as in Ray."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.run import has_terminal

if TYPE_CHECKING:
    from shoal.cluster.handle import RunEnv
    from shoal.ops.execute import Streams
    from shoal.ops.multiplexer import Multiplexer
    from shoal.remote.runner import PortForward

F = TypeVar("F", bound=Callable[..., Any])


def _forwards(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[PortForward, ...]:
    from shoal.remote.runner import PortForward

    forwards = []
    for value in values:
        local, _, remote = value.partition(":")
        try:
            ports = int(local), int(remote or local)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a port or LOCAL:REMOTE.") from None
        if not all(0 < port < 65536 for port in ports):
            raise click.BadParameter(f"{value!r} is not between 1 and 65535.")
        forwards.append(PortForward(*ports))
    return tuple(forwards)


start_option = click.option(
    "--start", is_flag=True, help="Bring the cluster up first if it is not."
)
stop_option = click.option(
    "--stop", is_flag=True, help="Terminate the cluster afterwards, even on failure."
)
no_cache_option = click.option(
    "--no-config-cache", is_flag=True, expose_value=False,
    help="Accepted for compatibility with Ray; there is no cache.",
)  # fmt: skip
port_forward_option = click.option(
    "-p", "--port-forward", "forwards", callback=_forwards, multiple=True, metavar="PORT",
    help="Forward a local port to the same port on the node, or LOCAL:REMOTE. Can be repeated.",
)  # fmt: skip


code_option = click.option(
    "--code", metavar="DIR", type=click.Path(path_type=Path),
    help="Send this directory, without what git ignores: it is the working directory of the "
    "command and of all workers. Default: shoal.code of the cluster's file, if set.",
)  # fmt: skip
requirements_option = click.option(
    "--requirements", metavar="FILE", type=click.Path(path_type=Path),
    help="A requirements.txt, pyproject.toml or uv.lock: `python` has these packages, here and in "
    "all workers.",
)  # fmt: skip
run_env_option = click.option(
    "--run-env", type=click.Choice(["auto", "host", "docker"]), default="auto",
    help="Run in the node's container (docker), on its host, or in the container if any (auto).",
)  # fmt: skip


def multiplexer_options(function: F) -> F:
    """`--screen` and `--tmux`, passed to the command as one `multiplexer`."""

    @functools.wraps(function)
    def command(*, screen: bool, tmux: bool, **rest: Any) -> Any:
        if screen and tmux:
            raise click.UsageError("Use --screen or --tmux, not both.")
        chosen: Multiplexer | None = None
        if screen or tmux:
            chosen = "screen" if screen else "tmux"
        return function(multiplexer=chosen, **rest)

    where = "in a session on the head that survives disconnects"
    for option in (
        click.option("--tmux", is_flag=True, help=f"Run in tmux, {where}."),
        click.option("--screen", is_flag=True, help=f"Run in screen, {where}."),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def exec_options(function: F) -> F:
    """All options of `exec` and `submit`, passed to the command as one `options: ExecOptions`."""

    @functools.wraps(function)
    def command(
        *,
        start: bool,
        stop: bool,
        multiplexer: Multiplexer | None,
        forwards: tuple[PortForward, ...],
        json: bool,
        run_env: RunEnv,
        code: Path | None,
        requirements: Path | None,
        **rest: Any,
    ) -> Any:
        from shoal.ops.execute import ExecOptions

        streams: Streams = "terminal" if has_terminal() else "raw"
        options = ExecOptions(
            "events" if json else streams,
            start,
            stop,
            multiplexer,
            forwards,
            run_env,
            code,
            requirements,
        )
        return function(options=options, json=json, **rest)

    command = multiplexer_options(command)
    usage_stats_option = click.option(
        "--disable-usage-stats", is_flag=True, expose_value=False,
        help="Accepted for compatibility with Ray; they are always off.",
    )  # fmt: skip
    for option in (
        *(usage_stats_option, no_cache_option, port_forward_option),
        *(stop_option, start_option, run_env_option, requirements_option, code_option),
    ):
        command = option(command)
    return command  # type: ignore[return-value]
