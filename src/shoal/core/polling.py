"""Polling with a deadline. Time comes from a clock, so tests do not wait."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

from shoal.core.clock import Clock


class PollUntilDeadline(AsyncIterator[None]):
    """`async for _ in PollUntilDeadline(...)` runs its body at once, and again after each interval
    until `timeout` seconds are over. The body leaves the loop when it sees what it waits for; code
    after the loop, or in its `else`, handles the missed deadline. `interval` is a number of
    seconds, or one for each pause (see `core.backoff.backoff_delays`)."""

    def __init__(self, clock: Clock, timeout: float, interval: float | Iterable[float]) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + timeout
        self._intervals: Iterator[float] = (
            iter(interval) if isinstance(interval, Iterable) else itertools.repeat(interval)
        )
        self._has_run = False

    async def __anext__(self) -> None:
        if self._has_run:
            if self._clock.monotonic() > self._deadline:
                raise StopAsyncIteration
            await self._clock.sleep(next(self._intervals))
        self._has_run = True


async def poll_until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]],
    *,
    clock: Clock,
    timeout: float,
    interval: float | Iterable[float],
) -> bool:
    """Evaluate `condition` at once and after each interval. Returns whether it became true before
    `timeout` seconds were over."""
    async for _ in PollUntilDeadline(clock, timeout, interval):
        result = condition()
        if result if isinstance(result, bool) else await result:
            return True
    return False
