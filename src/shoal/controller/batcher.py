"""Does many small things that are asked for at about the same time as one: a cloud counts calls,
and takes a list as readily as a single name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from shoal.core.clock import Clock

T = TypeVar("T")
_GATHER_SECONDS = 0.2


class Batcher(Generic[T]):
    """Collects what comes within a moment and does it with one call. Each asker gets the call's
    end, or its error."""

    def __init__(self, do: Callable[[Sequence[T]], Awaitable[None]], clock: Clock) -> None:
        self._do = do
        self._clock = clock
        self._items: list[T] = []
        self._call: asyncio.Task[None] | None = None

    async def ask(self, item: T) -> None:
        """Return when it is done."""
        self._items.append(item)
        if self._call is None:
            self._call = asyncio.ensure_future(self._soon())
        # Whoever stops waiting must not stop it for the others.
        await asyncio.shield(self._call)

    async def _soon(self) -> None:
        await self._clock.sleep(_GATHER_SECONDS)
        items, self._items, self._call = self._items, [], None
        await self._do(items)
