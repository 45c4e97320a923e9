"""Doing several things at once, never leaving one of them behind, and asking nothing twice.

`asyncio.gather` returns at the first failure while the others run on, which is no way to end
processes on machines; Python 3.11's task groups are too new for a cluster's Python 3.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from shoal.core.clock import Clock

T = TypeVar("T")


async def run_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and return their results in order. When one fails, or the caller is
    cancelled, the others are cancelled, and awaited to their very end, before that is told."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await _all_ended(tasks)
    failed = [task for task in tasks if not task.cancelled() and task.exception() is not None]
    return [task.result() for task in failed or tasks]


class TtlCache:
    """Answers that several want at once: the first who asks has them found, and all others get the
    same for so many seconds. A failure is nobody's answer: the next one asks again."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._known: dict[str, tuple[float, Any]] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def get(self, subject: str, look: Callable[[], Awaitable[T]]) -> T:
        """What `look` finds out about the subject, now or a while ago."""
        async with self._asking.setdefault(subject, asyncio.Lock()):
            now = self._clock.monotonic()
            at, answer = self._known.get(subject, (float("-inf"), None))
            if now - at > self._seconds:
                answer = await look()
                self._known[subject] = (now, answer)
            found: T = answer
            return found


async def _all_ended(tasks: list[asyncio.Task[T]]) -> None:
    """Wait for all, also when the caller loses patience: a second Ctrl-C must not leave what the
    first is just cleaning up."""
    impatient = False
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            impatient = True
    if impatient:
        raise asyncio.CancelledError
