from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shoal.controller.batcher import Batcher
from shoal.core.clock import SystemClock
from shoal.core.errors import TransientError


async def test_what_is_asked_for_at_once_is_one_call() -> None:
    calls: list[list[str]] = []

    async def do(items: Sequence[str]) -> None:
        calls.append(list(items))

    together = Batcher(do, SystemClock())
    await asyncio.gather(together.ask("a"), together.ask("b"))
    await together.ask("c")
    assert calls == [["a", "b"], ["c"]]


async def test_all_who_asked_hear_of_a_failure_and_the_next_try_is_a_new_one() -> None:
    failures = [TransientError("throttled")]

    async def do(items: Sequence[str]) -> None:
        if failures:
            raise failures.pop()

    together = Batcher(do, SystemClock())
    heard = await asyncio.gather(together.ask("a"), together.ask("b"), return_exceptions=True)
    assert [str(error) for error in heard] == ["throttled"] * 2
    await together.ask("a")


async def test_one_who_stops_waiting_does_not_stop_it_for_the_others() -> None:
    done: list[str] = []

    async def do(items: Sequence[str]) -> None:
        done.extend(items)

    together = Batcher(do, SystemClock())
    first = asyncio.ensure_future(together.ask("a"))
    second = asyncio.ensure_future(together.ask("b"))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert done == ["a", "b"]
    with pytest.raises(asyncio.CancelledError):
        await first
