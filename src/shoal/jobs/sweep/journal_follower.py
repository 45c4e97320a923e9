"""Follows a sweep on its head: prints the journal's new lines and the progress as JSON lines, until
its driver has ended or is gone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.core.file_lock import FileLock
from shoal.jobs.sweep.driver_files import LOCK_FILE, PROGRESS_FILE
from shoal.jobs.sweep.journal import JOURNAL_FILE

_POLL_S = 0.3
# Between the end of a driver and what it wrote last.
_GONE_S = 3.0
# Ray may still set up the environment of the job.
_START_S = 20.0

Emit = Callable[[dict[str, Any]], None]


def follow(directory: Path, after: int, attempt: int, emit: Emit) -> None:
    """Emit what the journal has beyond `after` bytes. Every entry has the position after it as
    `at`. Ends after the last entry of this attempt, or with `{"event": "gone"}` if no driver
    runs."""
    position, progress = after, ""
    patience, seen_at = _START_S, time.monotonic()
    while True:
        runs = driver_runs(directory)
        for end, entry in _lines(directory / JOURNAL_FILE, position):
            position = end
            emit({**entry, "at": position})
            if entry.get("event") == "end" and entry.get("attempt") == attempt:
                return
        if (text := _read(directory / PROGRESS_FILE)) and text != progress:
            progress = text
            emit({"event": "progress", **json.loads(text)})
        if runs:
            patience, seen_at = _GONE_S, time.monotonic()
        elif time.monotonic() - seen_at > patience:
            emit({"event": "gone"})
            return
        time.sleep(_POLL_S)


def driver_runs(directory: Path) -> bool:
    """Whether a driver holds the directory."""
    path = directory / LOCK_FILE
    if not path.exists():
        return False
    with FileLock(path) as lock:
        return not lock.try_acquire()


def _lines(path: Path, position: int) -> list[tuple[int, dict[str, Any]]]:
    """The complete entries after the position, each with the position after it."""
    if not path.exists():
        return []
    entries = []
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n"):
                break
            position += len(line)
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entries.append((position, entry))
    return entries


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
