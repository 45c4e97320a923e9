"""Waiting in tests: for a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

import psutil


async def until(
    condition: Callable[[], object | Awaitable[object]],
    what: str = "the condition",
    timeout: float = 60,
    every: float = 0.05,
) -> None:
    """Return when `condition` is true, or raise TimeoutError saying `what` never was."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if await value if inspect.isawaitable(value) else value:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {what}")
        await asyncio.sleep(every)


def alive(pid: int) -> bool:
    """Whether a process still does anything: one that waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
