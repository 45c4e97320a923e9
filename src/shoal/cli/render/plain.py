"""Renders events as plain lines with the elapsed seconds, for pipes and logs. All go to standard
error: standard output is for results only."""

from __future__ import annotations

import time
from types import TracebackType

import click

from shoal.cli.render import messages
from shoal.core.errors import ShoalError
from shoal.core.events import Event, NodeChanged, Output


class PlainRenderer:
    """Prints each event when it happens."""

    def __init__(self, *, verbose: bool, started: float | None = None) -> None:
        self._verbose = verbose
        self._started = time.monotonic() if started is None else started

    def event(self, event: Event) -> None:
        if isinstance(event, NodeChanged):
            elapsed = time.monotonic() - self._started
            detail = f"  {event.detail}" if event.detail else ""
            _print(f"{elapsed:6.1f}s  {event.node:<12} {event.phase}{detail}")
        elif isinstance(event, Output):
            if self._verbose:
                _print(f"{event.node} | {event.line}")
        else:
            for line in messages.lines(event):
                _print(line)

    def error(self, error: ShoalError) -> None:
        for line in messages.error_lines(error):
            _print(line)

    def __enter__(self) -> PlainRenderer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def _print(line: str) -> None:
    click.echo(line, err=True)
