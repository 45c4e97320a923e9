"""Waits for AWS's own word that machines are in a state, and notices those that never will be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock
from shoal.core.errors import TransientError
from shoal.core.polling import PollUntilDeadline
from shoal.providers.aws.instances import state_of
from shoal.providers.aws.termination_watch import TERMINAL_STATES, reason
from shoal.providers.model import State

# How often a listing is asked for: soon at first, and then at a pace that AWS likes.
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 2.0
_SECONDS = 900.0
# For so long a listing may still show a machine as it was before it was switched on.
_LAG_SECONDS = 30.0

Record = Mapping[str, Any]


def poll_intervals() -> Iterator[float]:
    """The pauses between one listing and the next."""
    return backoff_delays(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5)


class Waiter:
    """Looks at the listing of a cluster's machines until it says what it should."""

    def __init__(self, listed: Callable[[], Awaitable[Sequence[Record]]], clock: Clock) -> None:
        self._listed = listed
        self._clock = clock

    async def reach(self, ids: Sequence[str], goals: Collection[State], verb: str) -> None:
        """Return when AWS says of all these machines that they are in one of the states. One that
        a listing leaves out may just be too new for it."""

        def waiting(records: Mapping[str, Record]) -> list[str]:
            return [id for id in ids if id not in records or state_of(records[id]) not in goals]

        await self._until_none(waiting, verb)

    async def run(self, ids: Sequence[str]) -> dict[str, str]:
        """Return when every one of these machines, which were just switched on, runs or has fallen
        back: which those are, and why, in AWS's words."""
        began = self._clock.monotonic()
        stirred: set[str] = set()
        fallen: dict[str, str] = {}

        def waiting(records: Mapping[str, Record]) -> list[str]:
            lags = self._clock.monotonic() < began + _LAG_SECONDS
            for id in ids:
                state = state_of(records[id]) if id in records else None
                if state in (State.PENDING, State.RUNNING):
                    stirred.add(id)
                elif state in TERMINAL_STATES or (
                    state is not None and (id in stirred or not lags)
                ):
                    fallen[id] = reason(records[id])
            return [
                id
                for id in ids
                if id not in fallen
                and (id not in records or state_of(records[id]) is not State.RUNNING)
            ]

        await self._until_none(waiting, "start")
        return fallen

    async def _until_none(
        self, waiting: Callable[[Mapping[str, Record]], list[str]], verb: str
    ) -> None:
        left: list[str] = []
        async for _ in PollUntilDeadline(self._clock, _SECONDS, poll_intervals()):
            left = waiting({r["InstanceId"]: r for r in await self._listed()})
            if not left:
                return
        raise TransientError(
            f"{len(left)} machines did not {verb}: {', '.join(left[:5])}",
            why=f"AWS does not say so after {_SECONDS:.0f} s",
            fix="the same command again goes on waiting",
        )
