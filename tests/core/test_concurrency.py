"""Several coroutines at once: all of their results, or none of them left running."""

from __future__ import annotations

import asyncio

import pytest

from shoal.core.clock import SystemClock
from shoal.core.concurrency import TtlCache, run_all


async def _record_slow_cleanup(log: list[str], name: str) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(name)


async def _return(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _fail() -> int:
    await asyncio.sleep(0)
    raise ValueError("no")


async def test_results_keep_the_order_of_the_coroutines() -> None:
    assert await run_all(_return(n) for n in range(5)) == [0, 1, 2, 3, 4]


async def test_no_coroutines_have_no_results() -> None:
    assert await run_all([]) == []


async def test_a_failure_is_raised_after_the_others_have_ended() -> None:
    log: list[str] = []

    async def other() -> int:
        await _record_slow_cleanup(log, "other")
        return 0

    with pytest.raises(ValueError, match="no"):
        await run_all([other(), _fail(), other()])
    assert log == ["other", "other"]


async def test_a_cancelled_caller_waits_for_all_to_clean_up() -> None:
    log: list[str] = []
    coroutines = [_record_slow_cleanup(log, "a"), _record_slow_cleanup(log, "b")]
    task = asyncio.ensure_future(run_all(coroutines))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(log) == ["a", "b"]


async def test_a_caller_that_is_cancelled_twice_waits_too() -> None:
    log: list[str] = []
    task = asyncio.ensure_future(run_all([_record_slow_cleanup(log, "a")]))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["a"]


async def test_concurrent_callers_share_one_load() -> None:
    cache, loads = TtlCache(SystemClock(), ttl_seconds=60), []

    async def load() -> int:
        loads.append(1)
        return await _return(7)

    assert await run_all(cache.get_or_load("key", load) for _ in range(3)) == [7, 7, 7]
    assert len(loads) == 1


async def test_a_failed_load_is_not_cached() -> None:
    cache = TtlCache(SystemClock(), ttl_seconds=60)
    with pytest.raises(ValueError, match="no"):
        await cache.get_or_load("key", _fail)
    assert await cache.get_or_load("key", lambda: _return(7)) == 7
