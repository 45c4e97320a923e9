"""What a sweep reports, as events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.core.events import Event


@dataclass(frozen=True)
class SweepStarted(Event):
    """The sweep runs on the cluster, and goes on if this program ends. `done` runs were in the
    directory already. `price_per_hour` is what the cluster costs now and `max_price_per_hour` with
    all of its workers; None if it costs nothing or its price is not known. `price_at_time_limit` is
    the price of the sweep if every run takes its whole time limit."""

    kind = "sweep_started"
    sweep: str
    directory: str
    runs: int
    done: int
    style: str
    price_per_hour: float | None = None
    max_price_per_hour: float | None = None
    price_at_time_limit: float | None = None


@dataclass(frozen=True)
class SweepProgress(Event):
    """About once a second. `cost` is what the cluster has cost since the sweep was started or
    resumed here; `total_cost` adds the time that is left at the current price."""

    kind = "sweep_progress"
    total: int
    done: int
    failed: int
    running: int = 0
    waiting: int = 0
    nodes: int = 0
    seconds_left: float | None = None
    cost: float | None = None
    total_cost: float | None = None


@dataclass(frozen=True)
class SweepRunEnded(Event):
    """The results of a run are in the local directory."""

    kind = "sweep_run"
    run: int
    params: dict[str, Any]
    status: Literal["ok", "failed", "timeout", "lost"]
    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)
    why: str = ""
    fix: str = ""
    attempts: int = 1
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepNote(Event):
    """Something happened to the sweep that its user should know."""

    kind = "sweep_note"
    text: str
    level: Literal["info", "warning"] = "info"


@dataclass(frozen=True)
class SweepEnded(Event):
    """All runs have ended. `failed` includes those of earlier commands."""

    kind = "sweep_ended"
    directory: str
    runs: int
    failed: int
    cost: float | None = None
