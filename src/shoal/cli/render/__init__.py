"""Renders events: as a live table, as plain lines, or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
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
    started = time.monotonic()

    def load() -> Renderer:
        if json:
            from shoal.cli.render.json_lines import JsonRenderer

            return JsonRenderer(events=not result_only)
        if sys.stderr.isatty():
            from shoal.cli.render.live import LiveRenderer

            return LiveRenderer(verbose=verbose)
        from shoal.cli.render.plain import PlainRenderer

        return PlainRenderer(verbose=verbose, started=started)

    return _LazyRenderer(load)


class _LazyRenderer:
    """Loads a renderer, which takes long, when there is something to show. A command that only
    runs another shows nothing."""

    def __init__(self, load: Callable[[], Renderer]) -> None:
        self._load = load
        self._loaded: Renderer | None = None

    def event(self, event: Event) -> None:
        self._renderer().event(event)

    def error(self, error: ShoalError) -> None:
        self._renderer().error(error)

    def _renderer(self) -> Renderer:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def __enter__(self) -> Renderer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loaded is not None:
            self._loaded.__exit__(kind, error, trace)
