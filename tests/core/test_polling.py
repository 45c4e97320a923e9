"""Polling until a condition holds or a deadline passes."""

from __future__ import annotations

from shoal.core.polling import PollUntilDeadline, poll_until


class ManualClock:
    """Sleeping advances the time at once."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


async def test_a_condition_that_holds_is_seen_at_once() -> None:
    clock = ManualClock()
    assert await poll_until(lambda: True, clock=clock, timeout=0, interval=5)
    assert clock.time == 100


async def test_a_condition_is_evaluated_until_it_holds() -> None:
    clock = ManualClock()

    async def is_late() -> bool:
        return clock.time >= 107

    assert await poll_until(is_late, clock=clock, timeout=60, interval=2)
    assert clock.time == 108


async def test_the_last_evaluation_comes_after_the_deadline() -> None:
    clock = ManualClock()
    assert not await poll_until(lambda: False, clock=clock, timeout=5, interval=2)
    assert clock.time == 106


async def test_intervals_may_grow() -> None:
    clock, times = ManualClock(), []
    async for _ in PollUntilDeadline(clock, 6, iter([1.0, 2.0, 4.0, 8.0])):
        times.append(clock.time)
    assert times == [100, 101, 103, 107]
