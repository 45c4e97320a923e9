"""Collects items for one call: cloud APIs limit the rate of calls, and accept a list as readily as
a single id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from shoal.core.clock import Clock

T = TypeVar("T")
_BATCH_SECONDS = 0.2


class Batcher(Generic[T]):
    """Passes all items that are submitted within a moment to one call. Every submitter gets the
    call's result, or its error."""

    def __init__(self, call: Callable[[Sequence[T]], Awaitable[None]], clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._items: list[T] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> None:
        """Return when the call for this item has returned."""
        self._items.append(item)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run_batch())
        # A submitter that is cancelled must not cancel the call for the others.
        await asyncio.shield(self._task)

    async def _run_batch(self) -> None:
        await self._clock.sleep(_BATCH_SECONDS)
        items, self._items, self._task = self._items, [], None
        await self._call(items)
