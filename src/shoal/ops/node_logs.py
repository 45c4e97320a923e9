"""What the nodes print, into a file a node instead of to the listener."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TextIO

from shoal.core.events import Event, Output, Stage
from shoal.ops.context import Context


@contextlib.contextmanager
def redirected(ctx: Context, cluster: str) -> Iterator[Context]:
    """A context in which lines that nodes print go to `logs/CLUSTER/NODE.log` below Shoal's home.
    Each run starts its files anew, and only their owner can read them."""
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

        ctx.emit(Stage(f"what the nodes print goes to {directory}"))
        yield replace(ctx, emit=write)
