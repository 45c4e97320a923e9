"""The planner's output: a Plan of launches, drains and cancellations, each with its Reason."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.scaling.inputs import History, Market


class Cause(str, enum.Enum):
    """Why something is done or not done."""

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
    OUTDATED = "outdated"
    INFEASIBLE = "infeasible"
    LIMIT = "limit"
    CAPACITY = "capacity"
    BLOCKED = "blocked"
    SPEED = "speed"
    BUSY = "busy"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Reason:
    """The cause, a sentence for a person, and the numbers behind it."""

    cause: Cause
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PlannedLaunch:
    """Launch `count` instances. `throttled` launches count against `upscaling_speed`; the caller
    keeps the flag with the node and returns it in its NodeView. The caller may add `hosts`, of
    which the instances must be some."""

    node_type: str
    count: int
    reason: Reason
    market: Market = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    throttled: bool = True
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedDrain:
    """Drain a ready node. Ray refuses if the node is busy, except when the cause is consolidation:
    then its work is meant to move."""

    node_id: str
    node_type: str
    reason: Reason


@dataclass(frozen=True)
class PlannedCancel:
    """Terminate an instance that is not a Ray node yet."""

    node_id: str
    node_type: str
    reason: Reason


# How the subject of an unmet minimum begins; the node type follows.
MINIMUM_SUBJECT = "min_workers of "


@dataclass(frozen=True)
class Unmet:
    """Demand or a minimum that this plan cannot meet, and what would help."""

    subject: str
    count: int
    reason: Reason
    fix: str = ""

    @property
    def is_minimum(self) -> bool:
        return self.subject.startswith(MINIMUM_SUBJECT)


@dataclass(frozen=True)
class Plan:
    """All decisions of one planning pass. `price_per_hour` is the known price of the workers after
    the plan is carried out; `history` goes into the next call."""

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
