"""Watches the clusters known on this machine, one task and at most one connection each. A cluster
that does not answer keeps its last snapshot, and does not hold up the others."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace

from shoal.cluster.handle import ClusterHandle
from shoal.controller import client
from shoal.controller.status_stream import StatusUpdate, follow_status
from shoal.core.errors import ShoalError, UnreachableError, as_shoal_error
from shoal.core.file_lock import lock_owner
from shoal.core.logs import suppress_and_log
from shoal.costs.ledger import UsageRecord, merge_records, parse_records, summarize
from shoal.ops import known_clusters
from shoal.ops.cluster_history import ClusterHistory
from shoal.ops.cluster_snapshot import (
    ClusterSnapshot,
    Problem,
    from_instances,
    from_report,
    problem_of,
)
from shoal.ops.context import Context
from shoal.ops.cost import local_ledger
from shoal.providers.model import State, head_of
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

UPDATE_SECONDS = 2.0
# How long a provider's list may take, and how often it is read where nothing else tells.
_LIST_SECONDS = 30.0
_FREE_LIST_INTERVAL = 2.0
_CLOUD_LIST_INTERVAL = 15.0
_MAX_RETRY_SECONDS = 30.0
# How often embedded clusters are looked for that a crash left unrecorded, which scans processes.
_SCAN_SECONDS = 60.0


class ClusterWatch:
    """One cluster: its last snapshot and its history. `version` grows with every change."""

    def __init__(self, ctx: Context, name: str, *, every: float = UPDATE_SECONDS) -> None:
        self._ctx = ctx
        self._every = every
        self.name = name
        self.snapshot = ClusterSnapshot(name, "", "unknown")
        self.history = ClusterHistory()
        self.version = 0
        self._records: list[UsageRecord] = []
        self._failures = 0

    @property
    def records(self) -> list[UsageRecord]:
        """The usage that was recorded on the head and on this machine."""
        return self._records

    @property
    def running_ids(self) -> set[str]:
        return {node.id for node in self.snapshot.nodes if node.phase != "stopped"}

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                pause = await self._watch_once()
                self._failures = 0
            except Exception as error:  # one cluster must not end the others
                self._failures += 1
                self._on_error(as_shoal_error(error))
                pause = min(_MAX_RETRY_SECONDS, self._every * 2 ** min(self._failures, 6))
            await self._ctx.clock.sleep(pause)

    async def _watch_once(self) -> float:
        """List the cluster's instances, then follow its controller for as long as it reports.
        Returns how long to wait until the next time."""
        spec = known_clusters.load_recorded(self._ctx, self.name)
        cluster = ClusterHandle.of(self._ctx, spec)
        costs_money = cluster.capabilities.costs_money
        self._records = local_ledger(self._ctx).records(self.name)
        try:
            instances = await asyncio.wait_for(cluster.instances(), _LIST_SECONDS)
        except asyncio.TimeoutError:
            why = f"no reply within {_LIST_SECONDS:.0f} s"
            raise UnreachableError("the provider does not answer", why=why) from None
        head = head_of(instances)
        is_up = head is not None and head.state is State.RUNNING
        if not (is_up and self.snapshot.limits):  # else the controller's report says more
            self._publish(
                from_instances(
                    spec,
                    instances,
                    at=self._ctx.clock.now(),
                    costs_money=costs_money,
                    up_runs=self._up_runs(),
                    shutdown=cluster.shutdown,
                )
            )
        if head is not None and is_up and client.has_controller(spec):
            self.history = ClusterHistory()  # its first update has the whole history
            await self._follow(spec, cluster, costs_money)
            return self._every
        return _CLOUD_LIST_INTERVAL if costs_money else max(_FREE_LIST_INTERVAL, self._every)

    async def _follow(self, spec: ClusterSpec, cluster: ClusterHandle, costs_money: bool) -> None:
        head = await cluster.head()

        def on_update(update: StatusUpdate) -> None:
            self._failures = 0
            self.history.add_history(update.history)
            self.history.add_samples(update.samples)
            if update.usage:
                records = [*self._records, *parse_records("\n".join(update.usage))]
                self._records = merge_records(records)
            if self.history.is_full:
                self.history = self.history.newer_half()
            if update.report is None:
                if update.error is not None:
                    self._on_error(update.error)
                return
            self.history.add_status(update.report.state)
            error = update.error.why if update.error is not None else ""
            snapshot = from_report(
                spec,
                update.report,
                at=self._ctx.clock.now(),
                costs_money=costs_money,
                up_runs=self._up_runs(),
                error=error,
            )
            if self.history.unreadable:
                why = f"{self.history.unreadable} lines of the head's files are damaged"
                problem = Problem("part of the history is missing", why)
                snapshot = replace(snapshot, problems=(*snapshot.problems, problem))
            self._publish(snapshot)

        await follow_status(cluster, head, on_update, every=self._every)

    def _up_runs(self) -> bool:
        """Whether a `shoal up` on this machine works on the cluster."""
        return lock_owner(known_clusters.file_of(self._ctx, self.name, "up")) is not None

    def _publish(self, snapshot: ClusterSnapshot) -> None:
        running = {n.id for n in snapshot.nodes if n.phase != "stopped"}
        rows = summarize(self._records, self._ctx.clock.now(), running)
        known = [row.cost for row in rows if row.cost is not None]
        self.snapshot = replace(
            snapshot, cost=math.fsum(known) if known else None, cost_rows=tuple(rows)
        )
        self.version += 1

    def _on_error(self, error: ShoalError) -> None:
        _log.info("could not watch cluster %s: %s", self.name, error)
        self.snapshot = replace(
            self.snapshot, answers=False, problems=(problem_of(error, self.name),)
        )
        self.version += 1

    def end(self) -> None:
        """The cluster was terminated and forgotten."""
        self.snapshot = replace(
            self.snapshot,
            state="down",
            answers=True,
            nodes=(),
            price_per_hour=0.0,
            waiting=(),
            usage={},
            autostop_at=None,
            problems=(),
            at=self._ctx.clock.now(),
        )
        self.version += 1


class ClusterWatches:
    """A watch for every known cluster. Those of clusters that were terminated meanwhile stay, with
    what is known of them."""

    def __init__(self, ctx: Context, *, every: float = UPDATE_SECONDS) -> None:
        self._ctx = ctx
        self._every = every
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.watches: dict[str, ClusterWatch] = {}

    async def run(self, on_round: Callable[[], None] = lambda: None) -> None:
        """Watch until cancelled; `on_round` is called after each look for clusters."""
        scanned_at = -math.inf
        unrecorded: set[str] = set()
        try:
            while True:
                names = set(known_clusters.recorded_names(self._ctx.home))
                if self._ctx.clock.monotonic() - scanned_at > _SCAN_SECONDS:
                    with suppress_and_log(_log, "look for embedded clusters", ShoalError):
                        unrecorded = set(await known_clusters.known_names(self._ctx)) - names
                    scanned_at = self._ctx.clock.monotonic()
                await self._update(names | unrecorded)
                on_round()
                await self._ctx.clock.sleep(self._every)
        finally:
            await self._update(set())

    async def _update(self, names: set[str]) -> None:
        for name in names - self._tasks.keys():
            self.watches[name] = ClusterWatch(self._ctx, name, every=self._every)
            self._tasks[name] = asyncio.ensure_future(self.watches[name].run())
        ended = {name: self._tasks.pop(name) for name in self._tasks.keys() - names}
        for task in ended.values():
            task.cancel()
        if ended:
            await asyncio.wait(ended.values())
        for name in ended:
            self.watches[name].end()
