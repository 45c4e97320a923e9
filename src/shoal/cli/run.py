"""Runs one operation for the command line: picks a renderer, asks questions, and turns an
error into words and an exit code."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from shoal.cli.render import Renderer, renderer
from shoal.core.errors import ConfigError, ShoalError
from shoal.ops.context import Context
from shoal.remote.terminal import termination_signal

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130


def run(
    operation: Callable[[Context], Awaitable[T]],
    *,
    json: bool = False,
    verbose: bool = False,
    yes: bool = False,
    answers: bool = False,
) -> T:
    """Run an operation to its end and return its result, or exit with the error's code. With
    `answers`, all that goes to standard output for a program is what the caller makes of it."""
    # A terminal that closes, or a system that shuts down, gets what Ctrl-C gets: an orderly end.
    for sign in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(sign) is signal.SIG_DFL:  # and not nohup's
            signal.signal(sign, signal.default_int_handler)
    screen = renderer(json=json, verbose=verbose, answers=answers)
    ctx = Context(emit=screen.event, confirm=functools.partial(_confirm, yes=yes))
    if not gc.isenabled():
        gc.freeze()  # what is loaded by now stays to the end
        gc.enable()
    try:
        with screen:
            return asyncio.run(_awaited(operation, ctx))
    except ShoalError as error:
        if os.environ.get("SHOAL_DEBUG"):
            raise
        screen.error(error)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("SHOAL_DEBUG"):
            raise
        screen.error(_unexpected(error))
        sys.exit(1)
    except KeyboardInterrupt:
        _say_interrupted(screen)
        sys.exit(INTERRUPTED)


def follow(
    operation: Callable[[Context], Awaitable[None]],
    *,
    json: bool = False,
    verbose: bool = False,
    answers: bool = False,
) -> None:
    """Run an operation that goes on until Ctrl-C, which is a normal end for it."""

    async def until_asked_to_end(ctx: Context) -> None:
        with termination_signal() as asked:
            going_on = asyncio.ensure_future(operation(ctx))
            either: set[asyncio.Future[Any]] = {going_on, asked}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not going_on.done():
                    going_on.cancel()
                await asyncio.wait({going_on})
        if not going_on.cancelled():
            going_on.result()

    run(until_asked_to_end, json=json, verbose=verbose, answers=answers)


def output_options(function: F) -> F:
    """`--json` and `-v`, which most commands have."""
    for option in (
        click.option("--json", "json", is_flag=True, help="Print for a program: JSON only."),
        click.option("-v", "--verbose", is_flag=True, help="Show what the nodes print, too."),
    ):
        function = option(function)
    return function


def has_terminal() -> bool:
    """Whether a command on a node can have our terminal: one that is typed at and looked at. With
    its output in a file or a pipe, a terminal's line ends would get into that."""
    return sys.stdin.isatty() and sys.stdout.isatty()


yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


async def _awaited(operation: Callable[[Context], Awaitable[T]], ctx: Context) -> T:
    return await operation(ctx)


def _confirm(question: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(
            "this needs a yes, and there is nobody to ask",
            why="standard input is not a terminal",
            fix="add --yes",
        )
    return click.confirm(question, default=True, err=True)


def _say_interrupted(screen: Renderer) -> None:
    screen.error(
        ShoalError(
            "interrupted",
            why="what was begun is still there",
            fix="the same command again goes on with it; shoal down gives everything back",
        )
    )


def _unexpected(error: Exception) -> ShoalError:
    return ShoalError(
        f"something went wrong inside Shoal: {type(error).__name__}: {error}",
        why="this is a fault of the program, not of yours",
        fix="the same command with SHOAL_DEBUG=1 shows where; please report it",
    )
