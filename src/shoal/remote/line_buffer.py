"""Bytes as a command prints them, turned into lines a person can read.

Progress bars that redraw one line count as the line they end up as, what is not UTF-8 is
replaced, and a line without end is cut: nothing printed on a machine can harm who reads it.
"""

from __future__ import annotations

MAX_LINE_BYTES = 8192
TAIL_LINES = 20


class LineBuffer:
    """Collects chunks and gives whole lines, as bytes without their end."""

    def __init__(self, keep: int = 0) -> None:
        # However long the line, its last `keep` bytes are there for the caller to look at.
        self._keep = keep
        self._pending = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, pending = (self._pending + chunk).split(b"\n")
        if len(pending) > MAX_LINE_BYTES:
            pending = _latest_redraw(pending)
        if len(pending) > MAX_LINE_BYTES + self._keep:
            # One byte more than fits, so that `readable` sees that the line was cut.
            pending = pending[: MAX_LINE_BYTES + 1] + pending[len(pending) - self._keep :]
        self._pending = pending
        return lines

    def rest(self) -> bytes:
        """What came after the last line end; asked for once there is no more to come."""
        rest, self._pending = self._pending, b""
        return rest


def readable(line: bytes) -> str:
    """A line as text: the last state of a redrawn one, cut where it is too long."""
    line = _latest_redraw(line)
    if len(line) > MAX_LINE_BYTES:
        return line[:MAX_LINE_BYTES].decode(errors="replace") + " …"
    return line.decode(errors="replace")


def _latest_redraw(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]
