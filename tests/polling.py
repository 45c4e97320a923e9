"""Waiting in tests: for a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import psutil

from shoal.core.clock import SystemClock
from shoal.core.polling import PollUntilDeadline


async def until(
    condition: Callable[[], object | Awaitable[object]],
    what: str = "the condition",
    timeout: float = 60,
    every: float = 0.05,
) -> None:
    """Return when `condition` is true, or raise TimeoutError that says `what` never was."""
    async for _ in PollUntilDeadline(SystemClock(), timeout, every):
        value = condition()
        if await value if inspect.isawaitable(value) else value:
            return
    raise TimeoutError(f"not within {timeout} s: {what}")


def alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks, and return when they have ended. Once is not always enough: before Python
    3.12, an `asyncio.wait_for` whose result arrives at that moment returns it, and the task goes
    on."""
    pending = {task for task in tasks if task is not None and not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=0.5)
        await asyncio.gather(*done, return_exceptions=True)  # or their errors would be logged
