"""Tells everyone how things are: `shoal status` by a file, `ray status` by the GCS, and Prometheus.
Nobody is told what has not changed, but for now and then."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Protocol

from shoal.controller import status_file
from shoal.controller.journal import Journal
from shoal.controller.metrics import Metrics
from shoal.controller.planner_input import price_per_hour
from shoal.controller.status_file import Sizes
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.ray_runtime.gcs_client import Failed, Pending, Reading, Requested
from shoal.scaling import Demand, Plan
from shoal.spec.cluster_spec import ClusterSpec

# What has not changed is told again only so often: a silent controller is taken for dead.
_TELL_SECONDS = 4.0


class Engine(Protocol):
    """The part of the GCS that is told things. Calls block."""

    def report(
        self, version: int, machines: Sequence[Pending | Requested], failed: Sequence[Failed] = ()
    ) -> None: ...


class StatusPublisher:
    """Knows what was told last."""

    def __init__(
        self,
        directory: Path,
        journal: Journal,
        engine: Engine,
        clock: Clock,
        metrics: Metrics | None,
    ) -> None:
        self._directory = directory
        self._journal = journal
        self._engine = engine
        self._clock = clock
        self._metrics = metrics
        self._queue = status_file.Queue()
        self._told: object = None
        self._told_at = float("-inf")

    async def tell(
        self,
        spec: ClusterSpec,
        reading: Reading | None,
        plan: Plan,
        sizes: Sizes,
        trouble: str,
        turn_seconds: float,
        stamp: Hashable,
    ) -> None:
        """Say how things are, if that has changed or has not been said for a while. `sizes` says
        what nodes of each type have; `stamp` is that of the wishes that are followed."""
        now = self._clock.now()
        demand, usage = None, {}
        if reading is not None:
            demand, usage = reading.demand, status_file.usage(reading.nodes.values())
        news = (self._journal.entries, demand, usage, trouble, stamp)
        if news == self._told and now - self._told_at < _TELL_SECONDS:
            return
        self._told, self._told_at = news, now
        memory = self._journal.memory
        state = status_file.State(
            at=now,
            pid=os.getpid(),
            cluster=spec.cluster_name,
            waiting=()
            if demand is None
            else tuple(self._queue.rows(demand, plan, memory, sizes, now)),
            usage=usage,
            price_per_hour=price_per_hour(memory.nodes.values()),
            limits=status_file.limits(spec),
            trouble=trouble,
            metrics=self._metrics.address if self._metrics else "",
            **status_file.remembered(memory),
        )
        status_file.write(self._directory, state)
        if reading is not None:
            await self._tell_ray(reading)
        if self._metrics is not None:
            waiting = 0 if demand is None else _waiting(demand)
            self._metrics.observe(memory, waiting, state.price_per_hour, turn_seconds)

    async def _tell_ray(self, reading: Reading) -> None:
        memory = self._journal.memory
        machines: list[Pending | Requested] = [
            Pending(n.id, n.node_type, n.address, str(n.phase))
            for n in memory.nodes.values()
            if n.on_the_way
        ]
        machines += [Requested(i.node_type, i.count, i.at) for i in memory.intents.values()]
        failed = [
            Failed(f.failure.node_type, 1, f.text, f.failure.at) for f in memory.failures[-10:]
        ]
        with contextlib.suppress(ShoalError):
            await asyncio.to_thread(self._engine.report, reading.version, machines, failed)


def _waiting(demand: Demand) -> int:
    """How many tasks, actors and gangs are pending."""
    return sum(r.count for r in demand.requests) + sum(g.count for g in demand.gangs)
