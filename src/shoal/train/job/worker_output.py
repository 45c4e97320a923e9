"""Reads a worker's log file while the worker writes it."""

from __future__ import annotations

from pathlib import Path

_LAST_LINES = 20
_MAX_READ = 1 << 20
_TAIL_BYTES = 1 << 16


class OutputFile:
    """Lines are returned when they are complete; an unfinished one at the end of the worker."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._position = start

    def new_lines(self, *, at_end: bool = False) -> tuple[str, ...]:
        """The lines since the last call."""
        lines: list[str] = []
        while chunk := self._read():
            complete, newline, rest = chunk.rpartition(b"\n")
            if not newline:
                if not at_end and len(chunk) < _MAX_READ:
                    break
                complete, rest = chunk, b""
            self._position += len(chunk) - len(rest)
            lines += complete.decode(errors="replace").split("\n")
            if rest and not at_end and len(chunk) < _MAX_READ:
                break
        return tuple(lines)

    def skip(self) -> None:
        """Do not return what has been printed so far."""
        self._position = self._path.stat().st_size

    def last_lines(self) -> tuple[str, ...]:
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ()
        return tuple(text.splitlines()[-_LAST_LINES:])

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                return file.read(_MAX_READ)
        except OSError:
            return b""
