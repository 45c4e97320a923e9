"""Renders events as JSON, one object per line on standard output."""

from __future__ import annotations

import json
from types import TracebackType

import click

from shoal.core.errors import ShoalError
from shoal.core.events import Event, to_json


class JsonRenderer:
    """Prints errors always, and events unless they are disabled."""

    def __init__(self, *, events: bool = True) -> None:
        self._events = events

    def event(self, event: Event) -> None:
        if self._events:
            click.echo(json.dumps(to_json(event)))

    def error(self, error: ShoalError) -> None:
        record = {
            "event": "error",
            "class": error.label,
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
            "node": error.node,
            "output": list(error.output),
            "exit_code": error.exit_code,
        }
        click.echo(json.dumps(record))

    def __enter__(self) -> JsonRenderer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
