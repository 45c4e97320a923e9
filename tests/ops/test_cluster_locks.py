"""Two commands on one cluster: the second `up` waits for the first, and says for whom."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import TransientError
from shoal.core.events import Event, Stage
from shoal.core.file_lock import FileLock
from shoal.ops import cluster_locks
from shoal.ops.context import Context


class HurriedClock(SystemClock):
    """A clock on which each pause takes no time, and calls `on_sleep`."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.on_sleep: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.on_sleep()


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def ctx(tmp_path: Path, clock: HurriedClock, events: list[Event]) -> Context:
    return Context(events.append, home=tmp_path, clock=clock)


def hold(ctx: Context) -> FileLock:
    """The lock as another process holds it."""
    path = ctx.home / "clusters" / "demo.up"
    path.parent.mkdir(parents=True)
    lock = FileLock(path)
    assert lock.try_acquire()
    lock.write_owner()
    return lock


async def test_the_second_up_waits_and_says_for_whom(
    ctx: Context, clock: HurriedClock, events: list[Event]
) -> None:
    other = hold(ctx)

    def end_other() -> None:
        if clock.slept > 60:
            clock.on_sleep = lambda: None
            other.close()

    clock.on_sleep = end_other
    async with cluster_locks.up_lock(ctx, "demo"):
        pass
    (stage,) = events
    assert isinstance(stage, Stage)
    assert f"another shoal up of demo (process {os.getpid()}, since " in stage.text


async def test_the_wait_has_a_deadline(ctx: Context, events: list[Event]) -> None:
    with hold(ctx), pytest.raises(TransientError, match="has not ended"):
        async with cluster_locks.up_lock(ctx, "demo"):
            raise AssertionError("two processes hold the lock")


async def test_the_first_up_waits_for_nothing(ctx: Context, events: list[Event]) -> None:
    for _ in range(2):
        async with cluster_locks.up_lock(ctx, "demo"):
            pass
    assert events == []


def test_a_cluster_is_terminating_only_while_down_runs(ctx: Context) -> None:
    assert not cluster_locks.is_terminating(ctx, "demo")
    with cluster_locks.down_mark(ctx, "demo"):
        assert cluster_locks.is_terminating(ctx, "demo")
    assert not cluster_locks.is_terminating(ctx, "demo")
