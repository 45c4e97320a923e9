"""The journal on disk: one JSON object a line, on the disk before what it announces happens.

A crash can tear only the last line, which is then left out; any other line that cannot be read is
damage, and is counted and left out too, since the provider's list makes good what is missing.

A disk that is full stops nobody: what cannot be written is remembered, and written when there is
room. Only what must not be lost is not begun meanwhile: see `is_whole`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shoal.controller.paths import USAGE_LEDGER
from shoal.controller.state import ControllerState, Entry, NodeUpdated, from_line, to_line
from shoal.core.atomic_write import write_atomically
from shoal.costs.ledger import UsageLedger

_LARGE_BYTES = 4_000_000


class Journal:
    """A memory that outlives its process. Only one process may have it open. `entries` counts
    what was recorded since then; `trouble` says why the disk does not have all of it, if so."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._usage = UsageLedger(path.with_name(USAGE_LEDGER))
        self.memory, self.unreadable = replay(path)
        self.entries = 0
        self.trouble = ""
        self._file: IO[bytes] | None = None
        # Written anew, so that nothing is ever appended to a torn line.
        self.is_whole()

    def record(self, *entries: Entry) -> None:
        """Take entries in, and return when they are on the disk, or cannot be had there."""
        for entry in entries:
            self.memory.apply(entry)
            self.entries += 1
        if self._file is not None:
            self._append("".join(to_line(entry) + "\n" for entry in entries).encode())
        self._usage.record_nodes(entry.node for entry in entries if isinstance(entry, NodeUpdated))

    def is_whole(self) -> bool:
        """Whether all that is known is on the disk; if it was not, that is tried again."""
        if self._file is None:
            try:
                self._compact()
                self._file, self.trouble = self._path.open("ab", buffering=0), ""
            except OSError as error:
                self._gave_way(error)
        return self._file is not None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, lines: bytes) -> None:
        assert self._file is not None
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
            if self._file.tell() > _LARGE_BYTES:
                self._let_go()
                self.is_whole()
        except OSError as error:
            self._let_go()  # its last line may be torn, so all of it is written anew
            self._gave_way(error)

    def _let_go(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def _gave_way(self, error: OSError) -> None:
        self.trouble = f"no machine is launched: {self._path} cannot be written: {error.strerror}"

    def _compact(self) -> None:
        lines = "".join(f"{to_line(entry)}\n" for entry in self.memory.entries())
        write_atomically(self._path, lines, fsync=True)


def replay(path: Path) -> tuple[ControllerState, int]:
    """The memory that a journal holds, and how many of its lines cannot be read."""
    memory = ControllerState()
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
