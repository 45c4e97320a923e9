"""Tags instances with their bootstrap status (`ray-node-status`), with the values that Ray's own
launcher uses, where the provider supports tags.

Many instances change at once, so changes are collected and written together; a tag may be a few
seconds late. Nothing depends on these tags: they are for people who look at the cloud's console.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping

from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.events import Emit, Event, NodeChanged
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider

_log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 5.0

WAITING_FOR_SSH = "waiting-for-ssh"
_STATUSES: Mapping[Phase, str] = {
    Phase.BOOTING: WAITING_FOR_SSH,
    Phase.REACHABLE: "syncing-files",
    Phase.PREPARING: "setting-up",
    Phase.STARTING: "setting-up",
    Phase.READY: "up-to-date",
    Phase.FAILED: "update-failed",
}


class StatusTagger:
    """Writes status tags for some instances. `_written` holds the tag of each instance by id as
    the provider has it, `_pending` the tags still to write, `_task` the next write."""

    def __init__(self, provider: Provider, clock: Clock) -> None:
        self._tag_status = provider.capabilities.tag_status
        self._clock = clock
        self._written: dict[str, str] = {}
        self._pending: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def wrap(self, instances: Iterable[Instance], emit: Emit) -> Emit:
        """An `emit` that also tags these instances as their phases change."""
        ids = {i.name: i.id for i in instances}

        def emit_and_tag(event: Event) -> None:
            emit(event)
            if isinstance(event, NodeChanged) and event.node in ids:
                self._record(ids[event.node], event.phase)

        return emit_and_tag if self._tag_status is not None else emit

    async def flush(self) -> None:
        """Return when all pending tags are written."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._write()

    def _record(self, id: str, phase: Phase) -> None:
        status = _STATUSES.get(phase)
        if status is None or self._written.get(id, WAITING_FOR_SSH) == status:
            self._pending.pop(id, None)
            return
        self._pending[id] = status
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._write_later())

    async def _write_later(self) -> None:
        await self._clock.sleep(_INTERVAL_SECONDS)
        await self._write()

    async def _write(self) -> None:
        tags, self._pending = self._pending, {}
        if self._tag_status is None or not tags:
            return
        try:
            await self._tag_status(tags)
            self._written.update(tags)
        except ShoalError as error:
            _log.debug("could not write status tags of %d instances: %s", len(tags), error)
        except asyncio.CancelledError:
            self._pending = {**tags, **self._pending}
            raise
