"""Has the whole cluster go when nobody has used it for long enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from shoal.clock import Clock
from shoal.controller.act import Actor
from shoal.controller.handover import Handover
from shoal.controller.memory import Memory
from shoal.engine.gcs import Reading
from shoal.errors import ShoalError

# How long one turn waits for the cluster's end before the loop turns again.
_TURN_SECONDS = 5.0


class Engine(Protocol):
    """The part of the GCS that knows programs. Calls block."""

    def has_drivers(self) -> bool: ...


class Autostop:
    """Knows since when nobody can have used the cluster. `say` records a decision, by its verb and
    its reason."""

    def __init__(
        self, actor: Actor, engine: Engine, clock: Clock, say: Callable[[str, str], None]
    ) -> None:
        self._actor = actor
        self._engine = engine
        self._clock = clock
        self._say = say
        self._used_at = float("-inf")
        self._ending: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the cluster is being given back."""
        return self._ending is not None

    async def is_due(self, handover: Handover, reading: Reading, memory: Memory) -> bool:
        """Whether nobody has used the cluster for as long as its file allows. People and programs
        that ask for nothing are looked for only when Ray's own account says that it is time."""
        now, after = self._clock.now(), handover.spec.shoal.autostop
        if not after or now - self._used_at < after or idle_seconds(reading, memory) < after:
            return False
        try:
            runs = await asyncio.to_thread(self._engine.has_drivers)
        except ShoalError:
            return False
        machines = list(self._actor.known.values())
        if runs or await self._actor.workshop.is_attended(handover.gcs_address, machines):
            self._used_at = now
            return False
        return True

    async def stop(self, handover: Handover) -> bool:
        """Whether the whole cluster is gone, or switched off. That takes as many calls as it takes;
        a machine that does not go is tried again."""
        if self._ending is None:
            self._say("stop", f"idle for {handover.spec.shoal.autostop:.0f} s, as autostop allows")
            await self._actor.close()
            machines = list(self._actor.known.values())
            self._ending = asyncio.ensure_future(self._actor.workshop.give_back(machines))
        await asyncio.wait([self._ending], timeout=_TURN_SECONDS)
        if not self._ending.done():
            return False
        ended, self._ending = self._ending, None
        try:
            ended.result()
        except ShoalError as error:
            self._say("retry", str(error))
            return False
        return True

    def close(self) -> None:
        """Let go of it; whoever comes next finds the same idle cluster."""
        if self._ending is not None:
            self._ending.cancel()


def idle_seconds(reading: Reading, memory: Memory) -> float:
    """For how long nothing has run, waited or been on its way. A floor is a wish for machines, and
    does not count as use."""
    coming = memory.intents or any(node.on_the_way for node in memory.nodes.values())
    if reading.demand.requests or reading.demand.gangs or coming or not reading.nodes:
        return 0.0
    return min(node.idle_s for node in reading.nodes.values())
