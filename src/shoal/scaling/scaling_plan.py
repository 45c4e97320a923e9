"""What the planner says: a Plan of launches, drains and cancellations, each with its Reason."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.scaling.inputs import History, Market


class Cause(str, enum.Enum):
    """Why something is done, or is not."""

    MIN_WORKERS = "min-workers"
    INITIAL_WORKERS = "initial-workers"
    FLOOR = "floor"
    GANG = "gang"
    DEMAND = "demand"
    UTILIZATION = "utilization"
    CONSOLIDATION = "consolidation"
    IDLE = "idle"
    UNNEEDED = "unneeded"
    OVER_LIMIT = "over-limit"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"
    CAPACITY = "capacity"
    GIVEN_UP = "given-up"
    SPEED = "speed"
    BUSY = "busy"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Reason:
    """Why, in words a person understands and in the numbers that led to it."""

    cause: Cause
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PlannedLaunch:
    """Buy `count` machines. `throttled` ones counted against `upscaling_speed`; the caller keeps
    that with the node and hands it back in its NodeView."""

    node_type: str
    count: int
    reason: Reason
    market: Market = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    throttled: bool = True


@dataclass(frozen=True)
class PlannedDrain:
    """Ask a ready node to give up its place; it may refuse by being busy, except when the cause
    is consolidation: then its work is meant to move."""

    node_id: str
    node_type: str
    reason: Reason


@dataclass(frozen=True)
class PlannedCancel:
    """End a machine that has not become a node yet."""

    node_id: str
    node_type: str
    reason: Reason


@dataclass(frozen=True)
class Unmet:
    """Demand, or a wish of the file, that this plan leaves waiting, and what would help."""

    subject: str
    count: int
    reason: Reason
    fix: str = ""


@dataclass(frozen=True)
class Plan:
    """All decisions of one moment. `price_per_hour` is what the workers cost once the plan is
    carried out, as far as prices are known; `history` goes into the next call."""

    launches: tuple[PlannedLaunch, ...] = ()
    drains: tuple[PlannedDrain, ...] = ()
    cancels: tuple[PlannedCancel, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    price_per_hour: float = 0.0
    history: History = field(default_factory=History)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.launches or self.drains or self.cancels)
