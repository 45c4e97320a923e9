"""Figures for Prometheus, at an address that only the head itself can reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shoal.controller.state import ControllerState
from shoal.core.node_phase import Phase


def load() -> None:
    """Load what `Metrics` needs."""
    import prometheus_client  # noqa: F401


# Beside that of the reception: one that can be written into a scrape configuration.
PORT = 6377


class Metrics:
    """What the controller exports. Where it listens is `address`: at its port, unless somebody else
    has that. Decisions are counted from `since` on; those before were another controller's."""

    def __init__(self, host: str, since: float, port: int = PORT) -> None:
        import prometheus_client as prometheus

        self._types: set[str] = set()
        registry = prometheus.CollectorRegistry()

        def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Any:
            return prometheus.Gauge(f"shoal_{name}", text, labels, registry=registry)

        self._nodes = gauge("nodes", "Nodes by type and phase", ("node_type", "phase"))
        self._waiting = gauge("waiting", "Pending tasks, actors and gangs")
        self._price = gauge("price_per_hour", "US dollars for all machines, as far as known")
        self._decisions = prometheus.Counter(
            "shoal_decisions", "Decisions by what was done", ("action",), registry=registry
        )
        self._turns = prometheus.Histogram(
            "shoal_turn_seconds", "How long a turn of the loop takes", registry=registry
        )
        self._counted = since
        try:
            server, _ = prometheus.start_http_server(port, host, registry)
        except OSError:
            server, _ = prometheus.start_http_server(0, host, registry)
        self.address = f"{host}:{server.server_port}"

    def observe(self, memory: ControllerState, waiting: int, price: float, seconds: float) -> None:
        """Take the figures of one turn."""
        counts = Counter((n.node_type, n.phase) for n in memory.nodes.values())
        self._types |= {n.node_type for n in memory.nodes.values()}
        for node_type in self._types:  # also those of which the last has just gone
            for phase in Phase:
                self._nodes.labels(node_type, phase.value).set(counts[node_type, phase])
        self._waiting.set(waiting)
        self._price.set(price)
        self._turns.observe(seconds)
        for decision in memory.decisions:
            if decision.at > self._counted:
                self._decisions.labels(decision.action).inc()
        self._counted = max((d.at for d in memory.decisions), default=self._counted)
