"""The options of commands that run something on the head: Ray's, in all of them the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
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

    found = []
    for value in values:
        local, _, remote = value.partition(":")
        try:
            ports = int(local), int(remote or local)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a port, nor LOCAL:REMOTE.") from None
        if not all(0 < port < 65536 for port in ports):
            raise click.BadParameter(f"{value!r} is not between 1 and 65535.")
        found.append(PortForward(*ports))
    return tuple(found)


start_option = click.option("--start", is_flag=True, help="Bring the cluster up if it is not.")
stop_option = click.option(
    "--stop", is_flag=True, help="Give the cluster back afterwards, whatever happened."
)
no_cache_option = click.option(
    "--no-config-cache", is_flag=True, expose_value=False,
    help="As in Ray. Nothing is cached here.",
)  # fmt: skip
port_forward_option = click.option(
    "-p", "--port-forward", "forwards", callback=_forwards, multiple=True, metavar="PORT",
    help="Lead a port here to the same port there, or LOCAL:REMOTE. May be given again.",
)  # fmt: skip


run_env_option = click.option(
    "--run-env", type=click.Choice(["auto", "host", "docker"]), default="auto",
    help="In a node's container (docker), beside it (host), or in it if there is one (auto).",
)  # fmt: skip


def multiplexer_options(function: F) -> F:
    """`--screen` and `--tmux`, which reach the command as one `multiplexer`."""

    @functools.wraps(function)
    def command(*, screen: bool, tmux: bool, **rest: Any) -> Any:
        if screen and tmux:
            raise click.UsageError("Use --screen or --tmux, not both.")
        chosen: Multiplexer | None = None
        if screen or tmux:
            chosen = "screen" if screen else "tmux"
        return function(multiplexer=chosen, **rest)

    where = "in a session on the head that goes on without you"
    for option in (
        click.option("--tmux", is_flag=True, help=f"Run it in tmux, {where}."),
        click.option("--screen", is_flag=True, help=f"Run it in screen, {where}."),
    ):
        command = option(command)
    return command  # type: ignore[return-value]


def exec_options(function: F) -> F:
    """All of them, as one function that makes a `Manner` once it is known whether to print
    JSON."""

    @functools.wraps(function)
    def command(
        *,
        start: bool,
        stop: bool,
        multiplexer: Multiplexer | None,
        forwards: tuple[PortForward, ...],
        json: bool,
        run_env: RunEnv,
        **rest: Any,
    ) -> Any:
        from shoal.ops.execute import ExecOptions

        streams: Streams = "terminal" if has_terminal() else "raw"
        options = ExecOptions(
            "events" if json else streams, start, stop, multiplexer, forwards, run_env
        )
        return function(options=options, json=json, **rest)

    command = multiplexer_options(command)
    usage = click.option(
        "--disable-usage-stats", is_flag=True, expose_value=False,
        help="As in Ray. They are always off here.",
    )  # fmt: skip
    for option in (
        *(usage, no_cache_option, port_forward_option),
        *(stop_option, start_option, run_env_option),
    ):
        command = option(command)
    return command  # type: ignore[return-value]
