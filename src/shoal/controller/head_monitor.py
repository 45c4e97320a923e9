"""Keeps the head's Ray alive: without it there is no cluster, only machines that cost money."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from shoal.controller.executor import ActionExecutor, as_shoal_error
from shoal.controller.journal import Journal
from shoal.controller.state import Decision
from shoal.core.backoff import Backoff
from shoal.core.clock import Clock
from shoal.core.events import Event, NodeChanged
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance
from shoal.ray_runtime.gcs_client import Reading

# A GCS may be silent for a moment under load, or miss the node it is on; then the machine is asked.
_SILENCE_SECONDS = 5.0
_FIRST_BACKOFF_SECONDS = 10.0
_LONGEST_BACKOFF_SECONDS = 300.0


class HeadMonitor:
    """Watches the head's Ray and starts the cluster's anew when its daemons have died: the GCS, or
    the raylet beside it, without which the head runs nothing. `trouble` says what is wrong; empty:
    nothing."""

    def __init__(self, actor: ActionExecutor, journal: Journal, clock: Clock) -> None:
        self._actor = actor
        self._journal = journal
        self._clock = clock
        self._missed_since: float | None = None
        self._backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""

    @property
    def busy(self) -> bool:
        """Whether the head is being revived just now."""
        return self._task is not None and not self._task.done()

    def instance(self, instances: Mapping[str, Instance]) -> Instance | None:
        """The head's machine, if it is known."""
        return next((i for i in instances.values() if i.role == "head"), None)

    def watch(self, reading: Reading | None, instances: Mapping[str, Instance]) -> None:
        """Take note of whether the GCS answered and knows its own node, and do something about it
        if not."""
        now = self._clock.now()
        head = self.instance(instances)
        if reading is not None and (head is None or head.id in reading.nodes):
            self._missed_since, self.trouble = None, ""
            self._backoff.reset()
            return
        self._actor.head_missed_at = now
        if self._missed_since is None:
            self._missed_since = now
        if head is None or self.busy or self._backoff.is_active(now):
            return
        if now - self._missed_since >= _SILENCE_SECONDS:
            self._task = asyncio.ensure_future(self._revive(head, list(instances.values())))

    async def close(self) -> None:
        """Stop whatever is being done about it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _revive(self, head: Instance, instances: list[Instance]) -> None:
        try:
            if await self._actor.workshop.head_runs(head):
                self.trouble = "Ray runs on the head, but its GCS does not answer or know of it"
                self._backoff.record_failure(self._clock.now())
                return
            self._say("restart", "the head's Ray has died; all nodes start theirs again")
            self.trouble = "the head's Ray has died and is being started again"
            # No node can be part of another head's cluster, so each is brought up anew when the
            # head is back, like any that was lost.
            for instance in instances:
                self._actor.note(instance.id, Phase.BOOTING, "the head's Ray has died")
            await self._actor.workshop.revive(head, self._hear)
        except Exception as error:  # it is tried again, and meanwhile the rest goes on
            self.trouble = f"the head's Ray has died and cannot be started: {as_shoal_error(error)}"
            self._say("failed", self.trouble)
            self._backoff.record_failure(self._clock.now())
        finally:
            self._missed_since = None  # the new one may take its time, too

    def _hear(self, event: Event) -> None:
        head = self.instance(self._actor.known)
        if isinstance(event, NodeChanged) and event.phase is not Phase.FAILED and head is not None:
            self._actor.note(head.id, event.phase, event.detail)

    def _say(self, action: str, why: str) -> None:
        self._journal.record(Decision(self._clock.now(), action, "head", why))
