"""Writes node output to one log file per node instead of emitting it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TextIO

from shoal.core.events import Event, Output, Stage
from shoal.ops.context import Context


@contextlib.contextmanager
def output_to_files(ctx: Context, cluster: str) -> Iterator[Context]:
    """A context that writes `Output` events to `logs/CLUSTER/NODE.log` in Shoal's home. Each run
    overwrites the files, and only their owner can read them."""
    directory = ctx.home / "logs" / cluster
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.ExitStack() as stack:
        files: dict[str, TextIO] = {}

        def write(event: Event) -> None:
            if not isinstance(event, Output):
                ctx.emit(event)
                return
            if event.node not in files:
                file = (directory / f"{event.node}.log").open("w", buffering=1, encoding="utf-8")
                files[event.node] = stack.enter_context(file)
            files[event.node].write(f"{event.line}\n")

        ctx.emit(Stage(f"writing node output to {directory}"))
        yield replace(ctx, emit=write)
