"""Publishes the status: state.json for `shoal status`, the GCS for `ray status`, and metrics for
Prometheus. Unchanged status is republished only every 4 s."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Protocol

from shoal.controller import status_file
from shoal.controller.history import History, Sample, pending_resources
from shoal.controller.journal import Journal
from shoal.controller.planner_input import price_per_hour
from shoal.controller.state import ControllerState
from shoal.controller.status_file import NodeResources
from shoal.core.clock import Clock
from shoal.core.errors import ShoalError
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Phase
from shoal.ray_runtime.gcs_client import (
    FailedLaunch,
    GcsReading,
    PendingInstance,
    RequestedInstances,
)
from shoal.scaling import Demand, Plan
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# Well below `status_file.STALE_SECONDS`: a controller that publishes nothing is assumed dead.
_REPUBLISH_SECONDS = 4.0
# Beside that of the agent server; fixed, so that a scrape configuration can name it.
METRICS_PORT = 6377


class GcsReporter(Protocol):
    """The part of the GCS client that takes the autoscaler's report. Calls block."""

    def report(
        self,
        version: int,
        pending: Sequence[PendingInstance | RequestedInstances],
        failed: Sequence[FailedLaunch] = (),
    ) -> None: ...


class StatusPublisher:
    """Remembers what was published last, and when."""

    def __init__(
        self,
        directory: Path,
        journal: Journal,
        gcs: GcsReporter,
        clock: Clock,
        metrics: Metrics | None,
    ) -> None:
        self._directory = directory
        self._journal = journal
        self._gcs = gcs
        self._clock = clock
        self._metrics = metrics
        self._queue = status_file.WaitingQueue()
        self._history = History(directory)
        self._published: object = None
        self._published_at = float("-inf")

    async def publish(
        self,
        spec: ClusterSpec,
        reading: GcsReading | None,
        plan: Plan,
        resources: NodeResources,
        error: str,
        loop_seconds: float,
        config_stamp: Hashable,
        autostop_at: float | None = None,
    ) -> None:
        """Publish the status if it has changed, or was not published for a while. `resources` are
        those of a node of each type; `loop_seconds` is how long the last iteration took."""
        now = self._clock.now()
        demand, usage, node_usage = None, {}, {}
        if reading is not None:
            demand, usage = reading.demand, status_file.usage(reading.nodes.values())
            node_usage = {id: status_file.usage([n]) for id, n in reading.nodes.items()}
        content = (
            self._journal.entries, demand, node_usage, error, config_stamp, autostop_at is None,
        )  # fmt: skip
        if content == self._published and now - self._published_at < _REPUBLISH_SECONDS:
            return
        self._published, self._published_at = content, now
        state = self._journal.state
        waiting: Sequence[status_file.WaitingDemand] = ()
        if demand is not None:
            waiting = self._queue.rows(demand, plan, state, resources, now, error)
        status = status_file.ControllerStatus(
            at=now,
            pid=os.getpid(),
            cluster=spec.cluster_name,
            waiting=tuple(waiting),
            usage=usage,
            node_usage=node_usage,
            price_per_hour=price_per_hour(state.nodes.values()),
            limits=status_file.limits(spec),
            error=error,
            metrics=self._metrics.address if self._metrics else "",
            autostop_at=autostop_at,
            **status_file.journaled(state),
        )
        status_file.write(self._directory, status)
        if demand is not None:
            phases = Counter(str(node.phase) for node in state.nodes.values())
            self._history.sample(
                Sample(
                    at=now,
                    used={name: used for name, (used, _) in usage.items()},
                    total={name: total for name, (_, total) in usage.items()},
                    pending=pending_resources(demand),
                    waiting=_waiting_count(demand),
                    nodes=dict(phases),
                    price_per_hour=status.price_per_hour,
                )
            )
        if reading is not None:
            await self._report_to_gcs(reading)
        if self._metrics is not None:
            count = 0 if demand is None else _waiting_count(demand)
            self._metrics.observe(state, count, status.price_per_hour, loop_seconds)

    async def _report_to_gcs(self, reading: GcsReading) -> None:
        state = self._journal.state
        pending: list[PendingInstance | RequestedInstances] = [
            PendingInstance(n.id, n.node_type, n.address, str(n.phase))
            for n in state.nodes.values()
            if n.is_pending
        ]
        pending += [RequestedInstances(i.node_type, i.count, i.at) for i in state.intents.values()]
        failed = [
            FailedLaunch(f.failure.node_type, 1, f.text, f.failure.at) for f in state.failures[-10:]
        ]
        with suppress_and_log(_log, "report to the GCS", ShoalError):
            await asyncio.to_thread(self._gcs.report, reading.version, pending, failed)


def _waiting_count(demand: Demand) -> int:
    """How many tasks, actors and gangs are pending."""
    return sum(r.count for r in demand.requests) + sum(g.count for g in demand.gangs)


def load_metrics() -> None:
    """Import what `Metrics` needs."""
    import prometheus_client  # noqa: F401


class Metrics:
    """The Prometheus endpoint, reachable from the head only. It listens on its port, or on any
    other if that is taken; `address` is where. Only decisions after `since` are counted: earlier
    ones were counted by another controller."""

    def __init__(self, host: str, since: float, port: int = METRICS_PORT) -> None:
        import prometheus_client as prometheus

        self._node_types: set[str] = set()
        registry = prometheus.CollectorRegistry()

        def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Any:
            return prometheus.Gauge(f"shoal_{name}", text, labels, registry=registry)

        self._nodes = gauge("nodes", "Nodes by type and phase", ("node_type", "phase"))
        self._waiting = gauge("waiting", "PendingInstance tasks, actors and gangs")
        self._price = gauge("price_per_hour", "US dollars per hour, where prices are known")
        self._decisions = prometheus.Counter(
            "shoal_decisions", "Decisions by action", ("action",), registry=registry
        )
        self._loop_seconds = prometheus.Histogram(
            "shoal_loop_seconds", "Duration of one iteration of the loop", registry=registry
        )
        self._counted_until = since
        try:
            server, _ = prometheus.start_http_server(port, host, registry)
        except OSError as error:
            _log.info("metrics port %d is taken, using another: %s", port, error)
            server, _ = prometheus.start_http_server(0, host, registry)
        self.address = f"{host}:{server.server_port}"

    def observe(
        self, state: ControllerState, waiting: int, price: float, loop_seconds: float
    ) -> None:
        """Update all metrics after an iteration of the loop."""
        counts = Counter((n.node_type, n.phase) for n in state.nodes.values())
        self._node_types |= {n.node_type for n in state.nodes.values()}
        for node_type in self._node_types:  # also types whose last node has gone
            for phase in Phase:
                self._nodes.labels(node_type, phase.value).set(counts[node_type, phase])
        self._waiting.set(waiting)
        self._price.set(price)
        self._loop_seconds.observe(loop_seconds)
        for decision in state.decisions:
            if decision.at > self._counted_until:
                self._decisions.labels(decision.action).inc()
        self._counted_until = max((d.at for d in state.decisions), default=self._counted_until)
