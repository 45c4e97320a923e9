"""Renders events: as a live table, as plain lines, or as JSON."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol

from shoal.core.errors import ShoalError
from shoal.core.events import Event


class Renderer(Protocol):
    """Shows events as they happen. It is a context manager around an operation."""

    def event(self, event: Event) -> None: ...

    def error(self, error: ShoalError) -> None: ...

    def __enter__(self) -> Renderer: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def renderer(*, json: bool, verbose: bool, result_only: bool = False) -> Renderer:
    """The renderer for the current output. With `result_only`, the command prints its own JSON,
    and events must not mix with it."""
    if json:
        from shoal.cli.render.json_lines import JsonRenderer

        return JsonRenderer(events=not result_only)
    if sys.stderr.isatty():
        from shoal.cli.render.live import LiveRenderer

        return LiveRenderer(verbose=verbose)
    from shoal.cli.render.plain import PlainRenderer

    return PlainRenderer(verbose=verbose)
