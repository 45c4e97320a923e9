"""What the provider sells, asked for now and then: prices change, and a provider may not answer at
first, as one does not that has yet to learn of the head's new role."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shoal.controller.node_manager import NodeManager
from shoal.core.backoff import Backoff
from shoal.core.clock import Clock
from shoal.scaling.inputs import Offering

_RENEW_SECONDS = 3600.0
_FIRST_BACKOFF_SECONDS = 10.0
_LONGEST_BACKOFF_SECONDS = 900.0


class OfferingCache:
    """One question at a time, in the background."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: asyncio.Task[Sequence[Offering]] | None = None
        self._good_until = float("-inf")
        self._backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)

    def news(self, workshop: NodeManager) -> Sequence[Offering] | None:
        """What the provider has said since this was last asked; None for nothing."""
        now = self._clock.now()
        if self._asked is None:
            if now >= self._good_until and not self._backoff.is_active(now):
                self._asked = asyncio.ensure_future(workshop.offers())
            return None
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        if asked.exception() is not None:
            self._backoff.record_failure(now)
            return None
        self._backoff.reset()
        self._good_until = now + _RENEW_SECONDS
        return asked.result()

    def close(self) -> None:
        """Ask nobody any more; the next question is asked at once."""
        if self._asked is not None:
            self._asked.cancel()
        self._asked, self._good_until = None, float("-inf")
        self._backoff.reset()
