"""The heartbeat: a file that the controller's loop touches in every iteration, and the watchdog
that kills a controller whose loop is stalled."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

from shoal.controller.paths import CONTROLLER_LOCK, HEARTBEAT
from shoal.core.file_lock import lock_owner
from shoal.core.logs import suppress_and_log

_log = logging.getLogger(__name__)

# How often the heartbeat is checked, and how many checks in a row may find it unchanged. An
# iteration takes seconds, and half a minute where every call is slow.
CHECK_SECONDS = 5.0
MAX_MISSED = 12
# A loop without an iteration for this long is stalled.
STALLED_SECONDS = CHECK_SECONDS * MAX_MISSED


def touch(directory: Path) -> None:
    """Show that the loop is alive."""
    # The cluster may be shutting down, or its disk be full.
    with suppress_and_log(_log, "touch the heartbeat file", OSError):
        (directory / HEARTBEAT).touch()


class Watchdog:
    """Kills a controller that holds its lock but has no heartbeat. It counts checks, not seconds:
    while the whole machine is suspended, no check is missed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last_heartbeat: int | None = None
        self._missed = 0

    def check(self) -> None:
        """Check the heartbeat once."""
        heartbeat = _modified_at(self._directory / HEARTBEAT)
        self._missed = self._missed + 1 if heartbeat == self._last_heartbeat else 0
        self._last_heartbeat = heartbeat
        if self._missed < MAX_MISSED:
            return
        self._missed = 0
        if pid := lock_owner(self._directory / CONTROLLER_LOCK):
            _log.warning("controller loop is stalled; killing process %d", pid)
            with suppress_and_log(_log, f"kill process {pid}", ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _modified_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
