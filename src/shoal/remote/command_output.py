"""Delivers what a command prints: its bytes unchanged to programs, its lines to people.

For lines, a progress bar that redraws its line counts as the last state of that line, bytes that
are not UTF-8 are replaced, and lines that are too long are cut: no output can exhaust memory.
"""

from __future__ import annotations

from collections import deque

from shoal.remote.runner import OnBytes, OnLine, Stream

MAX_LINE_BYTES = 8192
TAIL_LINES = 20


class CommandOutput:
    """Passes the output of a command on as it arrives, and keeps its last lines, both streams
    mixed, in `tail`."""

    def __init__(self, on_line: OnLine | None = None, on_bytes: OnBytes | None = None) -> None:
        self._on_line = on_line
        self._on_bytes = on_bytes
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._buffers: dict[Stream, LineBuffer] = {"stdout": LineBuffer(), "stderr": LineBuffer()}

    def feed(self, chunk: bytes, stream: Stream) -> None:
        """Deliver a chunk of the command's output."""
        if self._on_bytes is not None:
            self._on_bytes(chunk, stream)
        for line in self._buffers[stream].feed(chunk):
            self._deliver(line, stream)

    def finish(self, stream: Stream) -> None:
        """The command's output on this stream is complete: deliver an incomplete last line."""
        if rest := self._buffers[stream].rest():
            self._deliver(rest, stream)

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    def _deliver(self, raw: bytes, stream: Stream) -> None:
        line = to_text(raw)
        self._tail.append(line)
        if self._on_line is not None:
            self._on_line(line, stream)


class LineBuffer:
    """Collects chunks and returns complete lines, as bytes without the line break. Of a line that
    is too long it keeps the beginning."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk, and return the lines that it completes."""
        *lines, pending = (self._pending + chunk).split(b"\n")
        if len(pending) > MAX_LINE_BYTES:
            # One byte more than fits, so that `to_text` sees that the line was cut.
            pending = _latest_redraw(pending)[: MAX_LINE_BYTES + 1]
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
