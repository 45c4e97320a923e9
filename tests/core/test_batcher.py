from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from shoal.core.batcher import Batcher
from shoal.core.clock import SystemClock
from shoal.core.errors import TransientError


async def test_items_that_are_submitted_together_are_one_call() -> None:
    calls: list[list[str]] = []

    async def call(items: Sequence[str]) -> None:
        calls.append(list(items))

    batcher = Batcher(call, SystemClock())
    await asyncio.gather(batcher.submit("a"), batcher.submit("b"))
    await batcher.submit("c")
    assert calls == [["a", "b"], ["c"]]


async def test_every_submitter_gets_the_error_and_the_next_call_is_a_new_one() -> None:
    failures = [TransientError("throttled")]

    async def call(items: Sequence[str]) -> None:
        if failures:
            raise failures.pop()

    batcher = Batcher(call, SystemClock())
    errors = await asyncio.gather(batcher.submit("a"), batcher.submit("b"), return_exceptions=True)
    assert [str(error) for error in errors] == ["throttled"] * 2
    await batcher.submit("a")


async def test_a_cancelled_submitter_does_not_cancel_the_call_for_the_others() -> None:
    done: list[str] = []

    async def call(items: Sequence[str]) -> None:
        done.extend(items)

    batcher = Batcher(call, SystemClock())
    first = asyncio.ensure_future(batcher.submit("a"))
    second = asyncio.ensure_future(batcher.submit("b"))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert done == ["a", "b"]
    with pytest.raises(asyncio.CancelledError):
        await first
