"""The journal on disk: one JSON object a line, on the disk before what it announces happens.

A crash can tear only the last line, which is then left out; any other line that cannot be read is
damage, and is counted and left out too, since the provider's list makes good what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shoal.controller.memory import Entry, Memory, Noted, from_line, to_line
from shoal.controller.places import RENTALS
from shoal.controller.rentals import Rentals

_LARGE_BYTES = 4_000_000


class Journal:
    """A memory that outlives its process. Only one process may have it open. `entries` counts
    what was recorded since then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rentals = Rentals(path.with_name(RENTALS))
        self.memory, self.unreadable = replay(path)
        self.entries = 0
        # Written anew, so that nothing is ever appended to a torn line.
        self._compact()
        self._file = self._open()

    def record(self, *entries: Entry) -> None:
        """Take entries in, and return when they are on the disk."""
        for entry in entries:
            self._file.write(to_line(entry) + "\n")
            self.memory.apply(entry)
            self.entries += 1
        self._file.flush()
        os.fsync(self._file.fileno())
        self._rentals.note(entry.node for entry in entries if isinstance(entry, Noted))
        if self._file.tell() > _LARGE_BYTES:
            self._file.close()
            self._compact()
            self._file = self._open()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> IO[str]:
        return self._path.open("a", encoding="utf-8")

    def _compact(self) -> None:
        draft = self._path.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            for entry in self.memory.entries():
                file.write(to_line(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)


def replay(path: Path) -> tuple[Memory, int]:
    """The memory that a journal holds, and how many of its lines cannot be read."""
    memory = Memory()
    unreadable = 0
    for line in _lines(path):
        try:
            memory.apply(from_line(line))
        except ValueError:
            unreadable += 1
    return memory, unreadable


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    yield from (line for line in text.split("\n") if line)
