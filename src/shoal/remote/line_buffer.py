"""Splits the bytes that a command prints into lines of readable text.

A progress bar that redraws its line counts as the last state of that line, bytes that are not
UTF-8 are replaced, and lines that are too long are cut: no output can exhaust memory.
"""

from __future__ import annotations

MAX_LINE_BYTES = 8192
TAIL_LINES = 20


class LineBuffer:
    """Collects chunks and returns complete lines, as bytes without the line break. Of a line that
    is too long it keeps the beginning and, for the caller, the last `keep` bytes."""

    def __init__(self, keep: int = 0) -> None:
        self._keep = keep
        self._pending = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk, and return the lines that it completes."""
        *lines, pending = (self._pending + chunk).split(b"\n")
        if len(pending) > MAX_LINE_BYTES:
            pending = _latest_redraw(pending)
        if len(pending) > MAX_LINE_BYTES + self._keep:
            # One byte more than fits, so that `to_text` sees that the line was cut.
            pending = pending[: MAX_LINE_BYTES + 1] + pending[len(pending) - self._keep :]
        self._pending = pending
        return lines

    def rest(self) -> bytes:
        """What follows the last line break. Call it at the end of the stream."""
        rest, self._pending = self._pending, b""
        return rest


def to_text(line: bytes) -> str:
    """A line as text: the last state of a redrawn line, cut if it is too long."""
    line = _latest_redraw(line)
    if len(line) > MAX_LINE_BYTES:
        return line[:MAX_LINE_BYTES].decode(errors="replace") + " …"
    return line.decode(errors="replace")


def _latest_redraw(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]
