"""Waiters: poll DescribeInstances until instances reach a state, fail, or terminate.

A state counts only when EC2 reports it. Every wait but `TerminationWatch.wait`, which its caller
cancels, has a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from shoal.core.backoff import backoff_delays
from shoal.core.clock import Clock
from shoal.core.errors import TransientError
from shoal.core.polling import PollUntilDeadline
from shoal.providers.aws.instances import TERMINAL_STATES, state_of, state_reason
from shoal.providers.model import State

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 2.0
_TIMEOUT_SECONDS = 900.0
# How long a listing may still show the state from before StartInstances.
_LISTING_LAG_SECONDS = 30.0
_TERMINATION_POLL_SECONDS = 5.0

Record = Mapping[str, Any]
ListInstances = Callable[[], Awaitable[Sequence[Record]]]


def poll_intervals() -> Iterator[float]:
    """The pauses between polls: short at first, then within EC2's rate limits."""
    return backoff_delays(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS, factor=1.5)


class Waiter:
    """Polls the listing of a cluster's instances until it shows the wanted states."""

    def __init__(self, list_instances: ListInstances, clock: Clock) -> None:
        self._list_instances = list_instances
        self._clock = clock

    async def until(self, ids: Sequence[str], states: Collection[State], verb: str) -> None:
        """Wait until each of these instances is in one of the states. An instance missing from
        the listing may be too new for it. `verb` completes the error "instances did not ..."."""

        def pending(records: Mapping[str, Record]) -> list[str]:
            return [id for id in ids if id not in records or state_of(records[id]) not in states]

        await self._poll(pending, verb)

    async def until_running(self, ids: Sequence[str]) -> dict[str, str]:
        """Wait until each of these instances, just started, runs or has failed to start. Returns
        the failed ones with EC2's reason."""
        started_at = self._clock.monotonic()
        seen_starting: set[str] = set()
        failed: dict[str, str] = {}

        def pending(records: Mapping[str, Record]) -> list[str]:
            may_lag = self._clock.monotonic() < started_at + _LISTING_LAG_SECONDS
            for id in ids:
                state = state_of(records[id]) if id in records else None
                if state in (State.PENDING, State.RUNNING):
                    seen_starting.add(id)
                elif state in TERMINAL_STATES or (
                    state is not None and (id in seen_starting or not may_lag)
                ):
                    failed[id] = state_reason(records[id])
            return [
                id
                for id in ids
                if id not in failed
                and (id not in records or state_of(records[id]) is not State.RUNNING)
            ]

        await self._poll(pending, "start")
        return failed

    async def _poll(self, pending: Callable[[Mapping[str, Record]], list[str]], verb: str) -> None:
        remaining: list[str] = []
        async for _ in PollUntilDeadline(self._clock, _TIMEOUT_SECONDS, poll_intervals()):
            remaining = pending({r["InstanceId"]: r for r in await self._list_instances()})
            if not remaining:
                return
        raise TransientError(
            f"{len(remaining)} instances did not {verb}: {', '.join(remaining[:5])}",
            why=f"EC2 still reports another state after {_TIMEOUT_SECONDS:.0f} s",
            fix="run the same command again to keep waiting",
        )


class TerminationWatch:
    """Notices instances that EC2 terminates while they boot. They will never answer, so connecting
    to them should fail at once rather than at the boot deadline. One listing every few seconds
    serves all concurrent waits."""

    def __init__(self, list_instances: ListInstances, clock: Clock) -> None:
        self._list_instances = list_instances
        self._clock = clock
        self._lock = asyncio.Lock()
        self._listed_at = clock.monotonic()
        self._records: dict[str, Record] = {}

    async def wait(self, id: str) -> str:
        """Wait until EC2 reports the instance as terminating or terminated; returns its reason."""
        while True:
            await self._clock.sleep(_TERMINATION_POLL_SECONDS)
            record = (await self._recent_records()).get(id)
            if record is not None and state_of(record) in TERMINAL_STATES:
                _log.info("instance %s terminated: %s", id, state_reason(record))
                return state_reason(record)

    async def _recent_records(self) -> dict[str, Record]:
        async with self._lock:
            now = self._clock.monotonic()
            if now - self._listed_at >= _TERMINATION_POLL_SECONDS:
                self._listed_at = now
                try:
                    self._records = {r["InstanceId"]: r for r in await self._list_instances()}
                except TransientError as error:
                    _log.debug("could not list instances, retrying at the next poll: %s", error)
            return self._records
