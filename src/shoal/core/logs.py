"""Logging: how a suppressed error leaves a trace, and where log records go.

Modules log with `logging.getLogger(__name__)`. Nothing is shown unless a program calls
`log_to_stderr` or `log_to_file`; secrets must never be part of a message.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


@contextlib.contextmanager
def suppress_and_log(
    logger: logging.Logger, action: str, *exceptions: type[BaseException]
) -> Iterator[None]:
    """Suppress these exceptions, as `contextlib.suppress` does, and log each at DEBUG.
    `action` completes "could not ..."."""
    try:
        yield
    except exceptions as error:
        logger.debug("could not %s: %s: %s", action, type(error).__name__, error)


def log_to_stderr(verbosity: int) -> None:
    """Show Shoal's log records on standard error: none by default, INFO from 1, DEBUG from 2."""
    if verbosity <= 0:
        return
    level = logging.INFO if verbosity == 1 else logging.DEBUG
    _attach(_StderrHandler(), level)


def log_to_file(path: Path, level: int = logging.INFO) -> None:
    """Append Shoal's log records to a file."""
    _attach(logging.FileHandler(path, encoding="utf-8"), level)


class _StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`, which a live table replaces to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _attach(handler: logging.Handler, level: int) -> None:
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger = logging.getLogger("shoal")
    logger.addHandler(handler)
    logger.setLevel(level)
