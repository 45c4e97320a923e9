"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


async def until(
    condition: Callable[[], object | Awaitable[object]],
    what: str,
    timeout: float = 10,
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
