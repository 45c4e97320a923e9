"""Exponential backoff."""

from __future__ import annotations

import itertools

from shoal.core.backoff import Backoff, backoff_delay, backoff_delays


def test_the_delay_doubles_up_to_its_limit_and_attempts_never_stop() -> None:
    backoff, now, delays = Backoff(5, 60), 1000.0, []
    assert not backoff.is_active(now)
    for _ in range(2000):
        backoff.record_failure(now)
        failed_at = now
        while backoff.is_active(now):
            now += 5
        delays.append(now - failed_at)
    assert delays[:5] == [5, 10, 20, 40, 60]
    assert set(delays[5:]) == {60}


def test_a_reset_ends_the_delay_and_the_next_one_is_short_again() -> None:
    backoff = Backoff(5, 60)
    backoff.record_failure(0)
    backoff.record_failure(0)
    backoff.reset()
    assert not backoff.is_active(0)
    backoff.record_failure(0)
    assert backoff.is_active(4) and not backoff.is_active(5)


def test_the_delay_grows_by_the_factor() -> None:
    assert [backoff_delay(n, 1.0, 3.0, factor=1.5) for n in range(4)] == [1.0, 1.5, 2.25, 3.0]


def test_jitter_stays_in_its_range() -> None:
    delays = itertools.islice(backoff_delays(1.0, 8.0, jitter=(0.5, 1.0)), 50)
    for n, delay in enumerate(delays):
        longest = min(2.0**n, 8.0)
        assert longest / 2 <= delay <= longest
