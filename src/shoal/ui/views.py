"""Snapshots and histories as JSON, as the page's JavaScript reads them. Pure. Nothing here may
contain a secret: it names every field that is sent."""

from __future__ import annotations

import json
from typing import Any

from shoal.ops.cluster_history import ClusterHistory, cost_curves
from shoal.ops.cluster_snapshot import ClusterSnapshot
from shoal.ops.cluster_watch import ClusterWatch

# Clocks that differ by less than this are the same: the head's time is in whole seconds.
_SAME_CLOCK_SECONDS = 3.0
_TREND_POINTS = 40


def encode(data: object) -> str:
    """Compact JSON of plain data and dataclasses."""
    return json.dumps(data, default=vars, separators=(",", ":"))


def clock_offset(snapshot: ClusterSnapshot) -> float:
    """What must be added to a time of the head to get this machine's."""
    offset = round(snapshot.at - snapshot.now)
    return 0.0 if abs(offset) < _SAME_CLOCK_SECONDS else float(offset)


def summary(watch: ClusterWatch) -> dict[str, Any]:
    """One cluster in the overview."""
    snapshot = watch.snapshot
    offset = clock_offset(snapshot)
    autostop_at = snapshot.autostop_at
    return {
        "cluster": snapshot.cluster,
        "provider": snapshot.provider,
        "state": snapshot.state,
        "answers": snapshot.answers,
        "phases": snapshot.phases,
        "nodes": len(snapshot.nodes),
        "price_per_hour": snapshot.price_per_hour,
        "priced": snapshot.priced,
        # To the cent of a cent: an overview need not change all the time.
        "cost": None if snapshot.cost is None else round(snapshot.cost, 4),
        "autostop_at": None if autostop_at is None else round((autostop_at + offset) / 5) * 5,
        "waiting": sum(row.count for row in snapshot.waiting),
        "usage": _main_usage(snapshot),
        "problems": snapshot.problems,
        "trend": _trend(watch.history),
    }


def _main_usage(snapshot: ClusterSnapshot) -> dict[str, tuple[float, float]]:
    return {name: pair for name, pair in snapshot.usage.items() if name in ("CPU", "GPU")}


def _trend(history: ClusterHistory) -> list[tuple[float, int]]:
    """The number of nodes over the last samples."""
    return [(round(s.at), sum(s.nodes.values())) for s in history.samples[-_TREND_POINTS:]]


def detail(watch: ClusterWatch) -> dict[str, Any]:
    """One cluster on its own page, without its history."""
    snapshot = watch.snapshot
    curves = cost_curves(watch.records, snapshot.at, watch.running_ids)
    return {
        "cluster": snapshot.cluster,
        "provider": snapshot.provider,
        "state": snapshot.state,
        "answers": snapshot.answers,
        "at": snapshot.at,
        "clock_offset": clock_offset(snapshot),
        "nodes": snapshot.nodes,
        "price_per_hour": snapshot.price_per_hour,
        "priced": snapshot.priced,
        "cost": snapshot.cost,
        "cost_rows": snapshot.cost_rows,
        "cost_curves": curves,
        "autostop_at": snapshot.autostop_at,
        "waiting": snapshot.waiting,
        "usage": snapshot.usage,
        "limits": snapshot.limits,
        "problems": snapshot.problems,
    }


class HistoryCursor:
    """What one page has seen of a history."""

    def __init__(self) -> None:
        self._history: ClusterHistory | None = None
        self._counts = (0, 0, 0, 0)

    def news(self, history: ClusterHistory) -> dict[str, Any] | None:
        """The rows that are new; None if there are none. With `reset`, they replace all others."""
        is_other = history is not self._history
        phases, decisions, failures, samples = (0, 0, 0, 0) if is_other else self._counts
        counts = (
            len(history.phases),
            len(history.decisions),
            len(history.failures),
            len(history.samples),
        )
        if not is_other and counts == self._counts:
            return None
        self._history, self._counts = history, counts
        return {
            "reset": is_other,
            "phases": history.phases[phases:],
            "decisions": [
                {"at": d.at, "action": d.action, "subject": d.subject, "why": d.why}
                for d in history.decisions[decisions:]
            ],
            "failures": history.failures[failures:],
            "samples": history.samples[samples:],
        }
