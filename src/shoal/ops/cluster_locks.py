"""What other commands on this machine do with a cluster: at most one `shoal up` at a time, and
whether a `shoal down` is terminating it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

from shoal.core.errors import TransientError
from shoal.core.events import Stage
from shoal.core.file_lock import FileLock, lock_owner
from shoal.core.polling import PollUntilDeadline
from shoal.ops import known_clusters
from shoal.ops.context import Context

# Longer than an `up` takes that waits for setup commands.
_WAIT_SECONDS = 3600.0
_POLL_SECONDS = 0.2


@contextlib.asynccontextmanager
async def up_lock(ctx: Context, cluster: str) -> AsyncIterator[None]:
    """Hold the lock of `up`. While another process holds it, say which, and wait for it. Raises
    `TransientError` if that takes too long."""
    path = _lock_file(ctx, cluster, "up")
    with FileLock(path) as lock:
        if not lock.try_acquire():
            since = time.strftime("%H:%M:%S", time.localtime(path.stat().st_mtime))
            holder = f"process {lock.read_owner()}, since {since}"
            ctx.emit(Stage(f"waiting for another shoal up of {cluster} ({holder})"))
            await _acquire(ctx, lock, cluster, holder)
        lock.write_owner()
        yield


@contextlib.contextmanager
def down_mark(ctx: Context, cluster: str) -> Iterator[None]:
    """Show other commands that this one terminates the cluster. It waits for none of them: a
    cluster can always be terminated."""
    with FileLock(_lock_file(ctx, cluster, "down")) as lock:
        if lock.try_acquire():
            lock.write_owner()
        yield


def is_terminating(ctx: Context, cluster: str) -> bool:
    """Whether a command on this machine is terminating the cluster."""
    return lock_owner(known_clusters.file_of(ctx, cluster, "down")) is not None


def _lock_file(ctx: Context, cluster: str, command: Literal["up", "down"]) -> Path:
    path = known_clusters.file_of(ctx, cluster, command)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


async def _acquire(ctx: Context, lock: FileLock, cluster: str, holder: str) -> None:
    async for _ in PollUntilDeadline(ctx.clock, _WAIT_SECONDS, _POLL_SECONDS):
        if lock.try_acquire():
            return
    raise TransientError(
        f"another shoal up of {cluster} has not ended within {_WAIT_SECONDS / 3600:.0f} h",
        why=f"it is {holder}",
        fix=f"kill {lock.read_owner()}\nshoal up CLUSTER",
    )
