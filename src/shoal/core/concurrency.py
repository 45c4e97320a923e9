"""Runs several coroutines at once without leaving one behind, and shares the results of lookups.

`asyncio.gather` returns at the first failure while the others keep running, which would leave
processes on remote hosts. Task groups need Python 3.11, and a cluster may have 3.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from shoal.core.clock import Clock

T = TypeVar("T")


async def run_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results in order. When one fails, or the caller is
    cancelled, cancel the others and wait until they have ended before raising."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await _wait_for_all(tasks)
    failed = [task for task in tasks if not task.cancelled() and task.exception() is not None]
    return [task.result() for task in failed or tasks]


class TtlCache:
    """Values that expire after some seconds. Concurrent callers that need the same key share one
    load. A load that fails is not cached: the next caller loads again."""

    def __init__(self, clock: Clock, ttl_seconds: float) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._values: dict[str, tuple[float, Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get_or_load(self, key: str, load: Callable[[], Awaitable[T]]) -> T:
        """The cached value of `key`, or what `load` returns if it is missing or expired."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            now = self._clock.monotonic()
            loaded_at, cached = self._values.get(key, (float("-inf"), None))
            if now - loaded_at > self._ttl_seconds:
                cached = await load()
                self._values[key] = (now, cached)
            value: T = cached
            return value


async def _wait_for_all(tasks: list[asyncio.Task[T]]) -> None:
    """Wait for all, even if the caller is cancelled again: a second Ctrl-C must not interrupt the
    cleanup that the first one started."""
    cancelled = False
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
