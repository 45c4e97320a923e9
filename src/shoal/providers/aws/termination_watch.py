"""What becomes of machines that do not answer: one listing now and then tells of all of them.

A machine that AWS takes back while it boots will never answer. Who waits for it should know at
once, and not when its time to boot is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shoal.core.clock import Clock
from shoal.core.errors import TransientError
from shoal.providers.aws.instances import state_of
from shoal.providers.model import State

_EVERY_SECONDS = 5.0
TERMINAL_STATES = (State.TERMINATING, State.TERMINATED)

Record = Mapping[str, Any]


class TerminationWatch:
    """Asks on behalf of all who wait, however many they are."""

    def __init__(self, listed: Callable[[], Awaitable[Sequence[Record]]], clock: Clock) -> None:
        self._listed = listed
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked_at = clock.monotonic()
        self._known: dict[str, Record] = {}

    async def end_of(self, id: str) -> str:
        """Return when AWS says that the machine is over, with its reason."""
        while True:
            await self._clock.sleep(_EVERY_SECONDS)
            record = (await self._recent()).get(id)
            if record is not None and state_of(record) in TERMINAL_STATES:
                return reason(record)

    async def _recent(self) -> dict[str, Record]:
        async with self._asking:
            now = self._clock.monotonic()
            if now - self._asked_at >= _EVERY_SECONDS:
                self._asked_at = now
                try:
                    self._known = {r["InstanceId"]: r for r in await self._listed()}
                except TransientError:
                    return self._known  # there is a next time
            return self._known


def reason(record: Record) -> str:
    """Why a machine is in its state, in AWS's words."""
    said = (record.get("StateReason") or {}).get("Message")
    return f"AWS says: {said}" if said else "AWS does not say why"
