"""A clock that stands still until it is told otherwise."""

from __future__ import annotations


class StillClock:
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
