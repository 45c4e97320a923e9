"""Turns events into something to look at: a live table, plain lines, or JSON."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol

from shoal.core.errors import ShoalError
from shoal.core.events import Event


class Renderer(Protocol):
    """Shows events as they happen. Used as a context around an operation."""

    def event(self, event: Event) -> None: ...

    def error(self, error: ShoalError) -> None: ...

    def __enter__(self) -> Renderer: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def renderer(*, json: bool, verbose: bool, answers: bool = False) -> Renderer:
    """The renderer that fits where the output goes. A command that `answers` prints its own JSON,
    which no event may get between."""
    if json:
        from shoal.cli.render.json_lines import JsonRenderer

        return JsonRenderer(events=not answers)
    if sys.stderr.isatty():
        from shoal.cli.render.live import LiveRenderer

        return LiveRenderer(verbose=verbose)
    from shoal.cli.render.plain import PlainRenderer

    return PlainRenderer(verbose=verbose)
