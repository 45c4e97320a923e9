"""When a durable checkpoint is taken, and what is said about it."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.train import checkpoint, env

INTERVAL = 60.0


class DurableCheckpoints:
    """Rank 0 writes; the others only take part in `State.sync`."""

    def __init__(
        self, on_written: Callable[[str, int, float], None], on_error: Callable[[str], None]
    ) -> None:
        self._writer = checkpoint.Writer(on_written)
        self._on_error = on_error
        self._reported = ""
        self._last = time.monotonic()
        self.requested = False

    def is_due(self, periodic: bool) -> bool:
        """Asked on rank 0."""
        if not env.checkpoint_path() or self._writer.busy:
            return False
        return self.requested or (periodic and time.monotonic() - self._last >= INTERVAL)

    def take(self, rank: int, wait: bool = False) -> None:
        """Called by all members at the same boundary."""
        for state in checkpoint.states():
            state.sync()
        self.requested = False
        self._last = time.monotonic()
        path = env.checkpoint_path()
        if rank == 0 and path:
            frozen = {state.name: state.freeze() for state in checkpoint.states()}
            self._writer.start(path, lambda: {name: make() for name, make in frozen.items()})
            if wait:
                self._writer.wait()
            self._report_error()

    def finish(self, rank: int) -> None:
        """The script has ended: its last state becomes durable."""
        path = env.checkpoint_path()
        if rank == 0 and path:
            self._writer.start(path, checkpoint.serialize_all)
        self._writer.wait()
        self._report_error()

    def _report_error(self) -> None:
        error = self._writer.error
        if error and error != self._reported:
            self._on_error(f"the checkpoint could not be written: {error}")
        self._reported = error
