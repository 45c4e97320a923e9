"""Waiting in tests: for a condition, with a deadline, never for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psutil


async def until(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Return as soon as the condition holds; fail the test when it does not come to hold."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true within {seconds:.0f} s")
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process still does anything: one that waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
