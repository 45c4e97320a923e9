"""Events as plain lines with the seconds since the start, for pipes and logs.

Progress goes to standard error, so that standard output holds only what was asked for."""

from __future__ import annotations

import time
from types import TracebackType

import click

from shoal.cli.render import messages
from shoal.core.errors import ShoalError
from shoal.core.events import Event, NodeChanged, Output


class PlainRenderer:
    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._began = time.monotonic()

    def event(self, event: Event) -> None:
        if isinstance(event, NodeChanged):
            elapsed = time.monotonic() - self._began
            detail = f"  {event.detail}" if event.detail else ""
            _say(f"{elapsed:6.1f}s  {event.node:<12} {event.phase}{detail}")
        elif isinstance(event, Output):
            if self._verbose:
                _say(f"{event.node} | {event.line}")
        else:
            for line in messages.lines(event):
                _say(line)

    def error(self, error: ShoalError) -> None:
        for line in messages.error_lines(error):
            _say(line)

    def __enter__(self) -> PlainRenderer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def _say(line: str) -> None:
    click.echo(line, err=True)
