"""What the class's thread prints goes to the log: standard output belongs to the command, which may
write JSON to it."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any, TextIO, cast

_log = logging.getLogger(__name__)

_logged_threads: set[int] = set()


class _ThreadFilter:
    """A stream that logs what some threads write, and passes on all else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if threading.get_ident() not in _logged_threads:
            return self._stream.write(text)
        for line in text.splitlines():
            if line.strip():
                _log.info("%s", line)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def log_output_of_this_thread() -> None:
    """Log what this thread prints to standard output from now on. Not what it prints to standard
    error, where the log itself may go."""
    _logged_threads.add(threading.get_ident())
    if not isinstance(sys.stdout, _ThreadFilter):
        sys.stdout = cast(TextIO, _ThreadFilter(sys.stdout))
