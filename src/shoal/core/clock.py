"""Time as an argument, so that tests and simulations control it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """The source of time for code that waits or records timestamps."""

    def now(self) -> float:
        """Seconds since the epoch, for timestamps that people or other machines read."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, for deadlines and durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellation ends the wait."""
        ...


class SystemClock:
    """The time of this machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
