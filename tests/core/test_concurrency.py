"""Several things at once: all of their results, or none of them left running."""

from __future__ import annotations

import asyncio

import pytest

from shoal.core.concurrency import run_all


async def _slow_to_end(log: list[str], name: str) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        for _ in range(5):
            await asyncio.sleep(0)
        log.append(name)


async def _answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _fail() -> int:
    await asyncio.sleep(0)
    raise ValueError("no")


async def test_results_come_in_the_order_of_the_work() -> None:
    assert await run_all(_answer(n) for n in range(5)) == [0, 1, 2, 3, 4]


async def test_nothing_to_do_is_done_at_once() -> None:
    assert await run_all([]) == []


async def test_a_failure_is_told_after_the_others_have_ended() -> None:
    log: list[str] = []

    async def other() -> int:
        await _slow_to_end(log, "other")
        return 0

    with pytest.raises(ValueError, match="no"):
        await run_all([other(), _fail(), other()])
    assert log == ["other", "other"]


async def test_a_cancelled_caller_waits_for_all_to_clean_up() -> None:
    log: list[str] = []
    task = asyncio.ensure_future(run_all([_slow_to_end(log, "a"), _slow_to_end(log, "b")]))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(log) == ["a", "b"]


async def test_an_impatient_caller_waits_all_the_same() -> None:
    log: list[str] = []
    task = asyncio.ensure_future(run_all([_slow_to_end(log, "a")]))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["a"]
