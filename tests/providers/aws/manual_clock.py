"""A clock that advances only when a test or a sleep advances it."""

from __future__ import annotations


class ManualClock:
    def __init__(self) -> None:
        self._now = 1_000_000.0

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)
