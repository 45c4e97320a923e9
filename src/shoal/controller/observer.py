"""Reads what the loop decides from: the provider's instance list and Ray's GCS. Changes nothing,
and never waits long: a slow answer is used in a later iteration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from shoal.controller.executor import as_shoal_error
from shoal.controller.node_manager import NodeManager
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.providers.model import Instance
from shoal.ray_runtime.gcs_client import GcsReading

_log = logging.getLogger(__name__)

# After a listing that contradicts Ray or the journal, the next follows soon.
_ANOMALY_LIST_SECONDS = 5.0
# The first listing is waited for, since nothing may be launched before it; later ones are not.
_FIRST_LIST_WAIT_SECONDS = 20.0
_LIST_WAIT_SECONDS = 0.05
# A listing without an answer after this long is abandoned and repeated.
_LIST_TIMEOUT_SECONDS = 120.0
_GCS_TIMEOUT_SECONDS = 8.0
# How old the set of pinned nodes may be.
_PINNED_SECONDS = 10.0
_NEVER = float("-inf")


class GcsReader(Protocol):
    """The part of the GCS client that the observer needs. Calls block."""

    def read(self) -> GcsReading: ...

    def nodes_with_actors(self) -> Collection[str]: ...


class Observer:
    """The listing in flight and when the last ones were made. At most one listing runs at a time.

    listed_at:     when the last complete listing was requested; -inf before the first
    error:         why the last listing failed; empty if it succeeded
    has_anomalies: set by the loop when the last listing contradicted what else is known
    reading:       the last GCS reading; None while the GCS is unreachable
    """

    def __init__(self, gcs: GcsReader, clock: Clock, report_anomaly: Callable[[str], None]) -> None:
        self._gcs = gcs
        self._clock = clock
        self._report_anomaly = report_anomaly
        self._listing: asyncio.Task[Sequence[Instance]] | None = None
        self._requested_at = self._pinned_at = _NEVER
        self._is_gcs_reachable = True
        self.listed_at = _NEVER
        self.error = ""
        self.has_anomalies = False
        self.reading: GcsReading | None = None

    @property
    def has_listed(self) -> bool:
        """Whether the provider has been listed at least once."""
        return self.listed_at != _NEVER

    async def list_instances(self, node_manager: NodeManager) -> Sequence[Instance] | None:
        """The provider's list if a new one has arrived, else None."""
        interval = node_manager.list_interval_s
        if self.has_anomalies:
            interval = min(interval, _ANOMALY_LIST_SECONDS)
        if self._listing is None and self._clock.now() - self._requested_at >= interval:
            self._requested_at = self._clock.now()
            self._listing = asyncio.ensure_future(node_manager.list_instances())
        if self._listing is None:
            return None
        wait = _LIST_WAIT_SECONDS if self.has_listed else _FIRST_LIST_WAIT_SECONDS
        await asyncio.wait([self._listing], timeout=wait)
        if not self._listing.done():
            if self._clock.now() - self._requested_at > _LIST_TIMEOUT_SECONDS:
                self._listing.cancel()
                self._listing = None
                self._report_anomaly(
                    f"no answer within {_LIST_TIMEOUT_SECONDS:.0f} s; listing again"
                )
            return None
        task, self._listing = self._listing, None
        try:
            instances = task.result()
        except Exception as error:  # any failure: the next listing may succeed
            self.error = str(as_shoal_error(error))
            self._report_anomaly(self.error)
            return None
        self.error = ""
        self.listed_at = self._requested_at
        return instances

    async def read_gcs(self) -> GcsReading | None:
        """Nodes and demand as Ray reports them; None if the GCS does not answer."""
        try:
            self.reading = await asyncio.wait_for(
                asyncio.to_thread(self._gcs.read), _GCS_TIMEOUT_SECONDS
            )
        except (ShoalError, asyncio.TimeoutError) as error:
            self.reading = None
            if self._is_gcs_reachable:
                _log.warning("GCS unreachable: %s", error or "no answer")
        else:
            if not self._is_gcs_reachable:
                _log.info("GCS reachable again")
        self._is_gcs_reachable = self.reading is not None
        return self.reading

    def is_pinned_due(self) -> bool:
        """Whether the set of pinned nodes is too old."""
        return self._clock.now() - self._pinned_at >= _PINNED_SECONDS

    async def read_pinned(self) -> Collection[str] | None:
        """The nodes, by Ray id, whose work does not end by itself; None if the GCS does not
        answer."""
        self._pinned_at = self._clock.now()
        try:
            return await asyncio.to_thread(self._gcs.nodes_with_actors)
        except ShoalError as error:
            _log.debug("could not read the pinned nodes: %s", error)
            return None

    def close(self) -> None:
        """Abandon a listing in flight."""
        if self._listing is not None:
            self._listing.cancel()
