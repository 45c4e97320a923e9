"""Keeps SSH open for a laptop whose address changes: when an instance does not answer, the provider
allows this machine's current address in place of its earlier one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.logs import suppress_and_log

_log = logging.getLogger(__name__)

# How long an instance may be silent before the rules are checked. Long enough for one that answers
# to answer, short enough for SSH's own attempts to succeed afterwards.
_SILENCE_SECONDS = 4.0
_CHECK_INTERVAL_SECONDS = 60.0
_FINISH_SECONDS = 10.0


class SshAccess(ABC):
    """This machine's access to a cluster's instances by SSH, for all connections at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._checked_at = -math.inf

    @abstractmethod
    async def allow_this_machine(self) -> None:
        """Allow SSH from this machine's current address, unless the file says from where it is
        allowed."""

    @contextlib.asynccontextmanager
    async def ensured(self) -> AsyncIterator[None]:
        """Check the rules if the block, which connects to an instance, takes long."""
        began = asyncio.Event()
        checking = asyncio.ensure_future(self._check_after_silence(began))
        try:
            yield
            if began.is_set():  # it connected, but the earlier address may not be removed yet
                await asyncio.wait([checking], timeout=_FINISH_SECONDS)
        finally:
            checking.cancel()
            await asyncio.wait([checking])

    async def _check_after_silence(self, began: asyncio.Event) -> None:
        await self._clock.sleep(_SILENCE_SECONDS)
        async with self._lock:
            now = self._clock.monotonic()
            if now < self._checked_at + _CHECK_INTERVAL_SECONDS:
                return
            self._checked_at = now
            began.set()
            # The connection fails with an error of its own if this does not help.
            with suppress_and_log(_log, "check the SSH rules", ShoalError):
                await self.allow_this_machine()
