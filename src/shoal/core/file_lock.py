"""A lock file that one process holds at a time. The kernel releases it when the process ends,
however that happens, so a lock is never stale.

The file stays when the lock is released: deleting it would let two processes hold "the" lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

# More digits than any process id has.
_PID_BYTES = 20
_POLL_SECONDS = 0.05


class FileLock:
    """An exclusive `flock` on a file, which can also name the process that holds it. A context
    manager: leaving it releases the lock. A forked child shares the lock and keeps it held."""

    def __init__(self, path: Path, *, mode: int = 0o644) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. The lock is released when no forked process shares it."""
        os.close(self._descriptor)

    def try_acquire(self) -> bool:
        """Acquire the lock if no other process holds it. Returns whether it is held now."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_held_elsewhere(self) -> bool:
        """Whether another process holds the lock. Processes that only ask this at the same time do
        not see each other."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return False

    def acquire(self) -> None:
        """Acquire the lock, and block until that is possible. Signal handlers run meanwhile."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def acquire_within(self, seconds: float) -> bool:
        """Acquire the lock, and block for at most so long. Returns whether it is held now."""
        deadline = time.monotonic() + seconds
        while not self.try_acquire():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def write_owner(self) -> None:
        """Write this process's id into the file. Overwriting in place works on a full disk; where
        even that fails the file is emptied, because no id is better than a wrong one."""
        pid = f"{os.getpid()}\n".encode()
        try:
            os.pwrite(self._descriptor, pid, 0)
        except OSError:
            pid = b""
        os.ftruncate(self._descriptor, len(pid))

    def read_owner(self) -> int | None:
        """The process id that `write_owner` wrote last."""
        text = os.pread(self._descriptor, _PID_BYTES, 0).partition(b"\n")[0]
        return int(text) if text.isdigit() else None


def lock_owner(path: Path) -> int | None:
    """The id of the process that holds the lock now, if one does."""
    if not path.exists():
        return None
    with FileLock(path) as lock:
        return lock.read_owner() if lock.is_held_elsewhere() else None
