"""Keeps the head's Ray running: without it there is no cluster, only instances that cost money."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from shoal.controller.executor import ActionExecutor, as_shoal_error
from shoal.controller.journal import Journal
from shoal.controller.state import Action, Decision
from shoal.core.backoff import Backoff
from shoal.core.clock import Clock
from shoal.core.events import Event, NodeChanged
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, head_of
from shoal.ray_runtime.gcs_client import GcsReading

_log = logging.getLogger(__name__)

# Under load a GCS may not answer for a moment, or miss its own node. After this long, the head's
# processes are checked.
_GRACE_SECONDS = 5.0
_FIRST_BACKOFF_SECONDS = 10.0
_LONGEST_BACKOFF_SECONDS = 300.0


class HeadMonitor:
    """Restarts the cluster's Ray when a daemon of the head has died: the GCS, or the raylet beside
    it, without which the head runs nothing. `error` describes the current problem; empty if there
    is none."""

    def __init__(self, executor: ActionExecutor, journal: Journal, clock: Clock) -> None:
        self._executor = executor
        self._journal = journal
        self._clock = clock
        self._missing_since: float | None = None
        self._backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)
        self._task: asyncio.Task[None] | None = None
        self.error = ""

    @property
    def is_busy(self) -> bool:
        """Whether the head's Ray is being restarted."""
        return self._task is not None and not self._task.done()

    def instance(self, instances: Mapping[str, Instance]) -> Instance | None:
        """The head's instance, if it is known."""
        return head_of(instances.values())

    def check(self, reading: GcsReading | None, instances: Mapping[str, Instance]) -> None:
        """Check that the GCS answers and reports the head's own node; start a repair if not."""
        now = self._clock.now()
        head = self.instance(instances)
        if reading is not None and (head is None or head.id in reading.nodes):
            self._missing_since, self.error = None, ""
            self._backoff.reset()
            return
        self._executor.head_ray_missing_at = now
        if self._missing_since is None:
            self._missing_since = now
        if head is None or self.is_busy or self._backoff.is_active(now):
            return
        if now - self._missing_since >= _GRACE_SECONDS:
            self._task = asyncio.ensure_future(self._repair(head, list(instances.values())))

    async def close(self) -> None:
        """Cancel a running repair."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _repair(self, head: Instance, instances: list[Instance]) -> None:
        node_manager = self._executor.node_manager
        try:
            if await node_manager.is_head_ray_running(head):
                self.error = "Ray runs on the head, but its GCS does not answer or list the head"
                _log.warning("%s", self.error)
                self._backoff.record_failure(self._clock.now())
                return
            self._decide("restart", "the head's Ray has died; restarting Ray on all nodes")
            self.error = "the head's Ray has died and is being restarted"
            # A node cannot move to a new GCS, so each is bootstrapped again once the head is back.
            for instance in instances:
                self._executor.transition(instance.id, Phase.BOOTING, "the head's Ray has died")
            workers = [i for i in instances if i.role == "worker"]
            await node_manager.restart_head_ray(head, workers, self._on_event)
        except Exception as error:  # any failure: it is retried, and the loop goes on
            cause = as_shoal_error(error)
            self.error = f"the head's Ray has died and could not be restarted: {cause}"
            self._executor.transition(head.id, Phase.FAILED, f"could not be restarted: {cause}")
            self._decide("failed", self.error)
            self._backoff.record_failure(self._clock.now())
        finally:
            self._missing_since = None  # the new GCS also gets time to answer

    def _on_event(self, event: Event) -> None:
        head = self.instance(self._executor.instances)
        if isinstance(event, NodeChanged) and event.phase is not Phase.FAILED and head is not None:
            self._executor.transition(head.id, event.phase, event.detail)

    def _decide(self, action: Action, why: str) -> None:
        self._journal.record(Decision(self._clock.now(), action, "head", why))
