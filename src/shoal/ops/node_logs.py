"""Writes the output of nodes to one log file per node, for `shoal logs`."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from shoal.core.events import Event, Output, Stage
from shoal.core.logs import suppress_and_log
from shoal.ops.context import Context

_log = logging.getLogger(__name__)


def log_file(ctx: Context, cluster: str, node: str) -> Path:
    """The file with the output of a node during the last `up`."""
    return _directory(ctx, cluster) / f"{node}.log"


def with_log_files(ctx: Context, cluster: str, *, only: bool = False) -> Context:
    """A context that also writes `Output` events to a file per node; with `only`, it does not emit
    them. Each run overwrites the files, and only their owner can read them."""
    directory = _directory(ctx, cluster)
    written: set[str] = set()

    def emit(event: Event) -> None:
        if isinstance(event, Output):
            # Opened for each line: a cluster may have more nodes than a process may open files.
            with suppress_and_log(_log, f"write the log of {event.node}", OSError):
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                mode = "a" if event.node in written else "w"
                with log_file(ctx, cluster, event.node).open(mode, encoding="utf-8") as file:
                    file.write(f"{event.line}\n")
                written.add(event.node)
        if not (only and isinstance(event, Output)):
            ctx.emit(event)

    if only:
        ctx.emit(Stage(f"writing node output to {directory}"))
    return replace(ctx, emit=emit)


def _directory(ctx: Context, cluster: str) -> Path:
    return ctx.home / "logs" / cluster
