"""Writes on machines, where their provider has room for it, how far they have come, in the words
that Ray's own launcher uses. Many machines move at once, so what they have to say is collected and
said together; a console that shows it a few seconds late is still a help."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.events import Emit, Event, NodeChanged
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider

_EVERY_SECONDS = 5.0

WAITING = "waiting-for-ssh"
_WORDS: Mapping[Phase, str] = {
    Phase.BOOTING: WAITING,
    Phase.REACHABLE: "syncing-files",
    Phase.PREPARING: "setting-up",
    Phase.STARTING: "setting-up",
    Phase.READY: "up-to-date",
    Phase.FAILED: "update-failed",
}


class StatusTagger:
    """What some machines say of themselves. `heard` passes events on and takes note of them."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._tag_status = provider.capabilities.tag_status
        self._clock = clock
        self._said: dict[str, str] = {}
        self._unsaid: dict[str, str] = {}
        self._saying: asyncio.Task[None] | None = None

    def heard(self, instances: Iterable[Instance], emit: Emit) -> Emit:
        """An `emit` for the bring-up of these machines."""
        ids = {i.name: i.id for i in instances}

        def hear(event: Event) -> None:
            emit(event)
            if isinstance(event, NodeChanged) and event.node in ids:
                self._note(ids[event.node], event.phase)

        return hear if self._tag_status is not None else emit

    async def settle(self) -> None:
        """Return when everything is said."""
        if self._saying is not None:
            self._saying.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._saying
            self._saying = None
        await self._say()

    def _note(self, id: str, phase: Phase) -> None:
        word = _WORDS.get(phase)
        if word is None or self._said.get(id, WAITING) == word:
            self._unsaid.pop(id, None)
            return
        self._unsaid[id] = word
        if self._saying is None or self._saying.done():
            self._saying = asyncio.ensure_future(self._say_soon())

    async def _say_soon(self) -> None:
        await self._clock.sleep(_EVERY_SECONDS)
        await self._say()

    async def _say(self) -> None:
        now, self._unsaid = self._unsaid, {}
        if self._tag_status is None or not now:
            return
        try:
            await self._tag_status(now)
            self._said.update(now)
        except ShoalError:
            pass  # it is for people who look; nothing depends on it
        except asyncio.CancelledError:
            self._unsaid = {**now, **self._unsaid}
            raise
