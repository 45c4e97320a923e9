"""Waiters: poll a cloud's records until instances reach a state, fail, or terminate.

A state counts only when the cloud reports it. Every wait but `TerminationWatch.wait`, which its
caller cancels, has a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock
from shoal.core.errors import TransientError
from shoal.core.polling import PollUntilDeadline
from shoal.providers.model import State

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 2.0
_TIMEOUT_SECONDS = 900.0
# How long a listing may still show the state from before StartInstances.
_LISTING_LAG_SECONDS = 30.0
_TERMINATION_POLL_SECONDS = 5.0

TERMINAL_STATES = (State.TERMINATING, State.TERMINATED)


@dataclass(frozen=True)
class Observed:
    """What a cloud reports of an instance: its state, and the reason that it gives for it."""

    id: str
    state: State
    reason: str = ""


# Returns what the cloud reports of the instances with these ids, as far as it knows them.
Describe = Callable[[Sequence[str]], Awaitable[Sequence[Observed]]]

_FORGOTTEN = "the cloud does not list it any more"


def poll_intervals() -> Iterator[float]:
    """The pauses between polls: short at first, then within the rate limits of clouds."""
    return backoff_delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, factor=1.5)


class Waiter:
    """Polls the records of instances until they show the wanted states.

    An instance without a record may be too new for it, or terminated so long ago that the cloud
    has forgotten it. It counts as terminated if it had a record before, or still has none after the
    time that a record may lag behind.
    """

    def __init__(self, describe: Describe, clock: Clock) -> None:
        self._describe = describe
        self._clock = clock

    async def until(self, ids: Sequence[str], states: Collection[State], verb: str) -> None:
        """Wait until each of these instances is in one of the states. `verb` completes the error
        "instances did not ..."."""
        started_at = self._clock.monotonic()
        seen: set[str] = set()

        def pending(records: Mapping[str, Observed]) -> list[str]:
            may_lag = self._clock.monotonic() < started_at + _LISTING_LAG_SECONDS
            seen.update(records)

            def is_done(id: str) -> bool:
                if id in records:
                    return records[id].state in states
                return State.TERMINATED in states and (id in seen or not may_lag)

            return [id for id in ids if not is_done(id)]

        await self._poll(ids, pending, verb)

    async def until_running(self, ids: Sequence[str]) -> dict[str, str]:
        """Wait until each of these instances, just started, runs or has failed to start. Returns
        the failed ones with the reason."""
        started_at = self._clock.monotonic()
        seen_starting: set[str] = set()
        failed: dict[str, str] = {}

        def pending(records: Mapping[str, Observed]) -> list[str]:
            may_lag = self._clock.monotonic() < started_at + _LISTING_LAG_SECONDS
            for id in ids:
                state = records[id].state if id in records else None
                if state is None and (id in seen_starting or not may_lag):
                    failed[id] = _FORGOTTEN
                elif state in (State.PENDING, State.RUNNING):
                    seen_starting.add(id)
                elif state in TERMINAL_STATES or (
                    state is not None and (id in seen_starting or not may_lag)
                ):
                    failed[id] = records[id].reason
            return [
                id
                for id in ids
                if id not in failed
                and (id not in records or records[id].state is not State.RUNNING)
            ]

        await self._poll(ids, pending, "start")
        return failed

    async def _poll(
        self, ids: Sequence[str], pending: Callable[[Mapping[str, Observed]], list[str]], verb: str
    ) -> None:
        if not ids:
            return
        remaining: list[str] = []
        async for _ in PollUntilDeadline(self._clock, _TIMEOUT_SECONDS, poll_intervals()):
            remaining = pending({r.id: r for r in await self._describe(ids)})
            if not remaining:
                return
        raise TransientError(
            f"{len(remaining)} instances did not {verb}: {', '.join(remaining[:5])}",
            why=f"the cloud still reports another state after {_TIMEOUT_SECONDS:.0f} s",
            fix="run the same command again to keep waiting",
        )


class TerminationWatch:
    """Notices instances that the cloud terminates while they boot. They will never answer, so
    connecting to them should fail at once rather than at the boot deadline. One call every few
    seconds serves all concurrent waits."""

    def __init__(self, describe: Describe, clock: Clock) -> None:
        self._describe = describe
        self._clock = clock
        self._watched: Counter[str] = Counter()
        self._lock = asyncio.Lock()
        self._listed_at = clock.monotonic()
        self._records: dict[str, Observed] = {}
        self._pending_at: dict[str, float] = {}

    def last_pending(self, id: str) -> float | None:
        """When a listing last showed the instance as pending, by the monotonic clock."""
        return self._pending_at.get(id)

    async def wait(self, id: str) -> str:
        """Wait until the cloud reports the instance as terminating or terminated; returns its
        reason."""
        self._watched[id] += 1
        try:
            while True:
                await self._clock.sleep(_TERMINATION_POLL_SECONDS)
                record = (await self._recent_records()).get(id)
                if record is not None and record.state in TERMINAL_STATES:
                    _log.info("instance %s terminated: %s", id, record.reason)
                    return record.reason
        finally:
            self._watched[id] -= 1

    async def _recent_records(self) -> dict[str, Observed]:
        async with self._lock:
            now = self._clock.monotonic()
            if now - self._listed_at >= _TERMINATION_POLL_SECONDS:
                self._listed_at = now
                try:
                    records = await self._describe(sorted(+self._watched))
                    self._records = {record.id: record for record in records}
                except TransientError as error:
                    _log.debug("could not describe instances, retrying at the next poll: %s", error)
                pending = (id for id, r in self._records.items() if r.state is State.PENDING)
                self._pending_at.update(dict.fromkeys(pending, now))
            return self._records
