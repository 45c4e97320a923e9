"""Stops an idle cluster: decides when it has been unused for long enough, and shuts it down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from shoal.controller.controller_config import ControllerConfig
from shoal.controller.executor import ActionExecutor, as_shoal_error
from shoal.controller.state import Action, ControllerState
from shoal.core.backoff import Backoff
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.ray_runtime.gcs_client import GcsReading

_log = logging.getLogger(__name__)

# How long one iteration of the loop waits for the shutdown.
_WAIT_SECONDS = 5.0
_FIRST_BACKOFF_SECONDS = 5.0
_LONGEST_BACKOFF_SECONDS = 300.0


class GcsActivity(Protocol):
    """The part of the GCS client that knows running programs. Calls block."""

    def read(self) -> GcsReading: ...

    def has_drivers(self) -> bool: ...


class Autostop:
    """Tracks since when the cluster is unused. `decide` records a decision: its action and reason.

    A shutdown that has begun is retried until it succeeds: once the head's restart is disabled,
    nothing else would terminate a head that could not be stopped.
    """

    def __init__(
        self,
        executor: ActionExecutor,
        gcs: GcsActivity,
        clock: Clock,
        decide: Callable[[Action, str], None],
    ) -> None:
        self._executor = executor
        self._gcs = gcs
        self._clock = clock
        self._decide = decide
        self._used_at = float("-inf")
        self._shutdown: asyncio.Task[None] | None = None
        self._has_begun = False
        self._backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)

    @property
    def has_begun(self) -> bool:
        """Whether the cluster is being shut down."""
        return self._has_begun

    async def is_due(
        self, config: ControllerConfig, reading: GcsReading, state: ControllerState
    ) -> bool:
        """Whether the cluster has been unused for as long as its file says. `shoal up` counts as
        use. User sessions and idle drivers are looked for only when Ray reports that it is time."""
        now, idle_limit = self._clock.now(), config.spec.shoal.autostop
        used_at = max(self._used_at, state.applied_config.at)
        if not idle_limit or now - used_at < idle_limit:
            return False
        if idle_seconds(reading, state) < idle_limit:
            return False
        try:
            has_drivers = await asyncio.to_thread(self._gcs.has_drivers)
        except ShoalError as error:
            _log.debug("could not list the drivers: %s", error)
            return False
        instances = list(self._executor.instances.values())
        node_manager = self._executor.node_manager
        if has_drivers or await node_manager.has_user_sessions(config.gcs_address, instances):
            self._used_at = now
            return False
        try:
            # Asking all nodes takes a while, and work may have arrived meanwhile.
            latest = await asyncio.to_thread(self._gcs.read)
        except ShoalError as error:
            _log.debug("could not read the GCS: %s", error)
            return False
        return idle_seconds(latest, state) >= idle_limit

    def due_at(
        self, config: ControllerConfig, reading: GcsReading, state: ControllerState
    ) -> float | None:
        """When the cluster stops if it stays unused; None without autostop and while Ray is
        used."""
        now, idle_limit = self._clock.now(), config.spec.shoal.autostop
        idle = idle_seconds(reading, state)
        if not idle_limit or not idle:
            return None
        return max(now - idle, self._used_at, state.applied_config.at) + idle_limit

    async def stop(self, config: ControllerConfig) -> bool:
        """Continue the shutdown, and return whether it is complete. It takes as many calls as
        needed; a failed attempt is retried."""
        if not self._has_begun:
            self._has_begun = True
            idle_limit = config.spec.shoal.autostop
            self._decide("stop", f"idle for {idle_limit:.0f} s (autostop)")
            await self._executor.close()
        if self._shutdown is None:
            if self._backoff.is_active(self._clock.now()):
                return False
            instances = list(self._executor.instances.values())
            shutdown = self._executor.node_manager.shut_down_cluster(instances)
            self._shutdown = asyncio.ensure_future(shutdown)
        await asyncio.wait([self._shutdown], timeout=_WAIT_SECONDS)
        if not self._shutdown.done():
            return False
        task, self._shutdown = self._shutdown, None
        try:
            task.result()
        except Exception as error:  # any failure: nothing else would try again
            self._decide("retry", str(as_shoal_error(error)))
            self._backoff.record_failure(self._clock.now())
            return False
        return True

    def cancel(self) -> bool:
        """Cancel the shutdown, because `shoal up` was run. Returns False while an attempt is in
        flight, which cannot be undone."""
        if self._shutdown is not None:
            return False
        self._has_begun = False
        self._backoff.reset()
        self._decide("keep", "autostop cancelled by `shoal up`")
        return True

    def close(self) -> None:
        """Abandon an attempt in flight; the next controller finds the same idle cluster."""
        if self._shutdown is not None:
            self._shutdown.cancel()


def idle_seconds(reading: GcsReading, state: ControllerState) -> float:
    """For how long nothing has run, waited or been launched. A `request_resources` floor does not
    count as use."""
    is_launching = state.intents or any(node.is_pending for node in state.nodes.values())
    has_demand = reading.demand.requests or reading.demand.gangs
    if has_demand or is_launching or not reading.nodes:
        return 0.0
    return min(node.idle_s for node in reading.nodes.values())
