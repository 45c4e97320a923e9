"""How a worker ends itself, so that the others go on."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from shoal.train import messages

_LINGER = 1.0


def leave(send: Callable[[messages.WorkerMessage], None], worker: str) -> NoReturn:
    """The new generation is without this worker."""
    send(messages.Left(worker))
    time.sleep(_LINGER)  # the others may still read from this worker
    _flush()
    os._exit(0)


def start_over(note: Callable[[str], None], worker: str, epoch: int | None) -> NoReturn:
    """The others have forgotten what this worker would have to replay. They go on without it, and
    another takes its place, as if its machine were lost."""
    note(f"worker {worker} joined too late: epoch {epoch} is long finished; it is replaced")
    _flush()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
