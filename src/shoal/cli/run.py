"""Runs one operation for a command: picks a renderer, asks for confirmation, and maps errors to
messages and exit codes."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shoal.cli.render import renderer
from shoal.core.errors import ConfigError, ShoalError, as_shoal_error, fix_for_cluster
from shoal.ops.context import ClusterArguments, Context, Severity
from shoal.remote.terminal import termination_signal

if TYPE_CHECKING:
    from shoal.core.events import Event

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130


def run(
    operation: Callable[[Context], Awaitable[T]],
    *,
    json: bool = False,
    verbose: int = 0,
    yes: bool = False,
    result_only: bool = False,
    resumable: bool = True,
) -> T:
    """Run an operation and return its result, or exit with the error's code. With `result_only`,
    no events go to standard output in JSON mode: the caller prints the result there. `resumable` if
    the same command continues an interrupted one."""
    # A closing terminal or a shutdown is handled like Ctrl-C: the operation cleans up.
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signal_number) is signal.SIG_DFL:  # nohup ignores SIGHUP: keep that
            signal.signal(signal_number, signal.default_int_handler)
    if verbose:
        from shoal.core.logs import log_to_stderr

        log_to_stderr(verbose)
    output = renderer(json=json, verbose=bool(verbose), result_only=result_only)
    cluster = ClusterArguments()
    ctx = Context(
        emit=lambda event: output.event(with_cluster(event, cluster.text)),
        confirm=functools.partial(_confirm, yes=yes),
        cluster_arguments=cluster,
        asks=not yes and sys.stdin.isatty(),
    )
    if not gc.isenabled():
        gc.freeze()  # modules loaded so far are never garbage
        gc.enable()
    try:
        with output:
            return asyncio.run(_awaited(operation, ctx))
    except Exception as error:
        if os.environ.get("SHOAL_DEBUG"):
            raise
        failure = as_shoal_error(error)
        failure.fix = fix_for_cluster(failure.fix, cluster.text)
        output.error(failure)
        sys.exit(failure.exit_code)
    except _QuestionInterrupted:
        click.echo("\ninterrupted: nothing was changed", err=True)
        sys.exit(INTERRUPTED)
    except KeyboardInterrupt:
        output.error(_interrupted(cluster.text) if resumable else ShoalError("interrupted"))
        sys.exit(INTERRUPTED)


def run_until_interrupted(
    operation: Callable[[Context], Awaitable[None]],
    *,
    json: bool = False,
    verbose: int = 0,
    result_only: bool = False,
) -> None:
    """Run an operation that ends with Ctrl-C, and exit with 0 then."""

    async def until_interrupted(ctx: Context) -> None:
        with termination_signal() as interrupted:
            task = asyncio.ensure_future(operation(ctx))
            either: set[asyncio.Future[Any]] = {task, interrupted}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not task.done():
                    task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    run(until_interrupted, json=json, verbose=verbose, result_only=result_only)


json_option = click.option("--json", "json", is_flag=True, help="Print JSON on standard output.")
verbose_option = click.option(
    "-v", "--verbose", count=True,
    help="Show node output and Shoal's log on standard error; -vv adds debug messages.",
)  # fmt: skip
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def output_options(function: F) -> F:
    """`--json` and `-v`, which most commands have."""
    return verbose_option(json_option(function))


def has_terminal() -> bool:
    """Whether a remote command can use our terminal. If standard output is a file or a pipe, it
    must not: the terminal's line endings would end up in the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


async def _awaited(operation: Callable[[Context], Awaitable[T]], ctx: Context) -> T:
    return await operation(ctx)


class _QuestionInterrupted(KeyboardInterrupt):
    """Ctrl-C at a question: nothing was changed."""


def _confirm(question: str, severity: Severity = Severity.NORMAL, *, yes: bool) -> bool:
    """Ask a question at the terminal. Ctrl-D means no, and Ctrl-C ends the command."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "confirmation required, but standard input is not a terminal",
            why=question,
            fix="add --yes",
        )
    # asyncio's handler would only cancel the operation once the user has answered.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        is_yes = _ask(question, default=severity is Severity.NORMAL)
    except KeyboardInterrupt:
        raise _QuestionInterrupted from None
    finally:
        signal.signal(signal.SIGINT, handler)
    if not is_yes:
        click.echo("nothing was changed", err=True)
    return is_yes


def _ask(question: str, *, default: bool) -> bool:
    while True:
        click.echo(f"{question} [{'Y/n' if default else 'y/N'}]: ", nl=False, err=True)
        line = sys.stdin.readline()
        answer = line.strip().lower()
        if not line:  # Ctrl-D
            click.echo(err=True)
            return False
        if answer in ("", "y", "yes", "n", "no"):
            return default if not answer else answer.startswith("y")
        click.echo("answer y or n", err=True)


def with_cluster(event: Event, arguments: str) -> Event:
    """The event with the commands in its hint completed."""
    from shoal.core.events import PreflightFinding, Warned

    if isinstance(event, (Warned, PreflightFinding)):
        return replace(event, fix=fix_for_cluster(event.fix, arguments))
    return event


def _interrupted(arguments: str) -> ShoalError:
    fix = "run the same command again to continue\nor terminate everything: shoal down CLUSTER"
    return ShoalError(
        "interrupted",
        why="what was started so far still exists",
        fix=fix_for_cluster(fix, arguments),
    )
