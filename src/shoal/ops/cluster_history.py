"""What has happened on a cluster, from the history that its controller keeps: phases of nodes,
decisions, failures and samples of demand and capacity. Pure.

Rows are only ever appended, so a reader that has seen the first n rows of a history needs only the
rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from shoal.controller.history import Sample
from shoal.controller.state import Decision
from shoal.controller.status_file import ControllerStatus
from shoal.core.node_phase import Phase
from shoal.costs.ledger import UsageRecord

# Of each kind. About what a head keeps.
_MAX_ROWS = 40_000
_MAX_CURVE_POINTS = 240

T = TypeVar("T")


@dataclass(frozen=True)
class NodePhase:
    """A node entered a phase. `why` is the reason it was launched, `ended` the reason it is
    leaving or has left."""

    at: float
    id: str
    name: str
    node_type: str
    role: str
    phase: str
    detail: str = ""
    why: str = ""
    ended: str = ""
    market: str = ""
    price_per_hour: float | None = None
    created: float = 0.0


@dataclass(frozen=True)
class FailureRow:
    """A launch or a setup that failed."""

    at: float
    node_type: str
    failure: str
    text: str


@dataclass
class ClusterHistory:
    """The rows of each kind, the oldest first, and how many lines could not be read."""

    phases: list[NodePhase] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    failures: list[FailureRow] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    unreadable: int = 0
    _current: dict[str, str] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether it should be replaced by `newer_half`."""
        return max(len(self.phases), len(self.decisions), len(self.samples)) > _MAX_ROWS

    def newer_half(self) -> ClusterHistory:
        """Another history without the older half of the rows of each kind."""
        half = _MAX_ROWS // 2
        return ClusterHistory(
            self.phases[-half:],
            self.decisions[-half:],
            self.failures[-half:],
            self.samples[-half:],
            self.unreadable,
            self._current,
        )

    def add_history(self, lines: Iterable[str]) -> None:
        """Append lines of the history file. Damaged ones are counted and skipped."""
        for line in lines:
            try:
                self._add(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError):
                self.unreadable += 1

    def add_samples(self, lines: Iterable[str]) -> None:
        """Append lines of the samples file."""
        for line in lines:
            try:
                self.samples.append(_made(Sample, json.loads(line)))
            except (ValueError, TypeError, KeyError, AttributeError):
                self.unreadable += 1

    def add_status(self, status: ControllerStatus) -> None:
        """Append what a status has and the history has not: it may be damaged, or the controller
        older than it."""
        for node in (*status.gone, *status.nodes):
            if self._current.get(node["id"]) != str(Phase(node["phase"])):
                self._add({"kind": "node", **node})
        last = self.decisions[-1].at if self.decisions else -math.inf
        self.decisions += [d for d in status.decisions if d.at > last]

    def _add(self, row: Mapping[str, Any]) -> None:
        kind = row["kind"]
        if kind == "node":
            phase = str(Phase(row["phase"]))
            self.phases.append(_made(NodePhase, {**row, "at": row["since"], "phase": phase}))
            self._current[row["id"]] = phase
        elif kind == "decision":
            self.decisions.append(_made(Decision, row))
        elif kind == "failure":
            self.failures.append(_made(FailureRow, row))


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """A row with those of the values that it has fields for. Raises TypeError if some are missing,
    or if its time is not a number."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    made = kind(**{name: value for name, value in values.items() if name in names})
    if not isinstance(made.at, (int, float)):  # type: ignore[attr-defined]
        raise TypeError("a row without a time")
    return made


@dataclass(frozen=True)
class CostCurve:
    """What the instances of one node type and market had cost at each time."""

    node_type: str
    market: str
    points: tuple[tuple[float, float], ...]


def cost_curves(
    records: Sequence[UsageRecord], now: float, running_ids: Iterable[str]
) -> list[CostCurve]:
    """The cost so far over time, by node type and market; straight lines between the points."""
    running = set(running_ids)
    groups: dict[tuple[str, str], list[UsageRecord]] = {}
    for record in records:
        if record.price_per_hour:
            groups.setdefault((record.node_type, record.market), []).append(record)
    return [CostCurve(*key, _curve(group, now, running)) for key, group in sorted(groups.items())]


def _curve(
    records: Sequence[UsageRecord], now: float, running: set[str]
) -> tuple[tuple[float, float], ...]:
    changes: dict[float, float] = {now: 0.0}
    for record in records:
        end = max(record.started_at, record.end(now, running))
        rate = (record.price_per_hour or 0.0) / 3600
        changes[record.started_at] = changes.get(record.started_at, 0.0) + rate
        changes[end] = changes.get(end, 0.0) - rate
    points, cost, rate, before = [], 0.0, 0.0, min(changes)
    for at in sorted(changes):
        cost += rate * (at - before)
        rate, before = rate + changes[at], at
        points.append((at, cost))
    step = max(1, math.ceil(len(points) / _MAX_CURVE_POINTS))
    return (*points[:-1][::step], points[-1])
