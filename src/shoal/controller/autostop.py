"""Has the whole cluster go when nobody has used it for long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from shoal.controller.controller_config import ControllerConfig
from shoal.controller.executor import ActionExecutor, as_shoal_error
from shoal.controller.state import ControllerState
from shoal.core.backoff import Backoff
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.ray_runtime.gcs_client import Reading

# How long one turn waits for the cluster's end before the loop turns again.
_TURN_SECONDS = 5.0
# How long it rests when that failed: longer each time, since it may be throttled.
_FIRST_BACKOFF_SECONDS = 5.0
_LONGEST_BACKOFF_SECONDS = 300.0


class Engine(Protocol):
    """The part of the GCS that knows programs. Calls block."""

    def read(self) -> Reading: ...

    def has_drivers(self) -> bool: ...


class Autostop:
    """Knows since when nobody can have used the cluster. `say` records a decision, by its verb and
    its reason. An end that has begun is gone through with: a head that has taken its leave, and
    could not be switched off, has nobody else who would try again."""

    def __init__(
        self, actor: ActionExecutor, engine: Engine, clock: Clock, say: Callable[[str, str], None]
    ) -> None:
        self._actor = actor
        self._engine = engine
        self._clock = clock
        self._say = say
        self._used_at = float("-inf")
        self._ending: asyncio.Task[None] | None = None
        self._begun = False
        self._backoff = Backoff(_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS)

    @property
    def has_begun(self) -> bool:
        """Whether the cluster is being given back."""
        return self._begun

    async def is_due(
        self, handover: ControllerConfig, reading: Reading, memory: ControllerState
    ) -> bool:
        """Whether nobody has used the cluster for as long as its file allows; handing it over is
        use. People and programs that ask for nothing are looked for only when Ray's own account
        says that it is time."""
        now, after = self._clock.now(), handover.spec.shoal.autostop
        used_at = max(self._used_at, memory.handed_over.at)
        if not after or now - used_at < after or idle_seconds(reading, memory) < after:
            return False
        try:
            runs = await asyncio.to_thread(self._engine.has_drivers)
        except ShoalError:
            return False
        machines = list(self._actor.known.values())
        if runs or await self._actor.workshop.is_attended(handover.gcs_address, machines):
            self._used_at = now
            return False
        try:
            # Asking all machines takes a while, and work may have come meanwhile.
            latest = await asyncio.to_thread(self._engine.read)
        except ShoalError:
            return False
        return idle_seconds(latest, memory) >= after

    async def stop(self, handover: ControllerConfig) -> bool:
        """Whether the whole cluster is gone, or switched off. That takes as many calls as it takes;
        a machine that does not go is tried again."""
        if not self._begun:
            self._begun = True
            self._say("stop", f"idle for {handover.spec.shoal.autostop:.0f} s, as autostop allows")
            await self._actor.close()
        if self._ending is None:
            if self._backoff.is_active(self._clock.now()):
                return False
            machines = list(self._actor.known.values())
            self._ending = asyncio.ensure_future(self._actor.workshop.give_back(machines))
        await asyncio.wait([self._ending], timeout=_TURN_SECONDS)
        if not self._ending.done():
            return False
        ended, self._ending = self._ending, None
        try:
            ended.result()
        except Exception as error:  # whatever it is, nobody else would try again
            self._say("retry", str(as_shoal_error(error)))
            self._backoff.record_failure(self._clock.now())
            return False
        return True

    def call_off(self) -> bool:
        """Whether the cluster stays after all, because somebody wants it again. What is being ended
        at this very moment cannot be held."""
        if self._ending is not None:
            return False
        self._begun = False
        self._backoff.reset()
        self._say("keep", "somebody wants it again")
        return True

    def close(self) -> None:
        """Let go of it; whoever comes next finds the same idle cluster."""
        if self._ending is not None:
            self._ending.cancel()


def idle_seconds(reading: Reading, memory: ControllerState) -> float:
    """For how long nothing has run, waited or been on its way. A floor is a wish for machines, and
    does not count as use."""
    coming = memory.intents or any(node.on_the_way for node in memory.nodes.values())
    if reading.demand.requests or reading.demand.gangs or coming or not reading.nodes:
        return 0.0
    return min(node.idle_s for node in reading.nodes.values())
