"""Time as an argument, so that a test can hold it still and a simulation can run it ahead."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Where code that waits or stamps gets its time from."""

    def now(self) -> float:
        """Seconds since the epoch, for stamps that a person or another machine reads."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for deadlines and durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellation ends the wait."""
        ...


class SystemClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
