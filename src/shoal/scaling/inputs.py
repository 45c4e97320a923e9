"""What the planner is told about the world: nodes, offers, and what went before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Resources

Market = Literal["on-demand", "spot"]
FailureKind = Literal["capacity", "quota", "setup"]

ON_THE_WAY = frozenset(
    {Phase.REQUESTED, Phase.BOOTING, Phase.REACHABLE, Phase.PREPARING, Phase.STARTING}
)
# A terminating machine no longer counts against a limit: its end has been ordered.
COUNTED = ON_THE_WAY | {Phase.READY, Phase.DRAINING}


@dataclass(frozen=True)
class NodeView:
    """One node as the planner sees it.

    `total` and `available` are Ray's figures; a node on its way has none yet and counts with
    what its type promises. `idle_s` is Ray's own account. `restartable` says that all that runs
    here may be moved. `throttled` is what the launch said: whether it counted against
    `upscaling_speed`. `doomed` says that its machine will be taken away: it counts for nothing any
    more, and what runs on it needs another place.
    """

    id: str
    node_type: str
    phase: Phase
    is_head: bool = False
    total: Resources = field(default_factory=dict)
    available: Resources = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    idle_s: float = 0.0
    market: Market = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    restartable: bool = False
    throttled: bool = True
    doomed: bool = False

    @cached_property
    def likeness(self) -> str:
        """Equal for nodes that differ in nothing but their name and how long they are idle, if
        they share the mappings that describe them: thousands of such nodes are one to count.
        A string, because it is looked up far more often than made, and keeps its hash."""
        return (
            f"{self.node_type}\0{self.phase.value}\0{self.is_head}\0{self.idle_s > 0}\0"
            f"{self.market}\0{self.zone}\0{self.price_per_hour}\0{self.throttled}\0"
            f"{id(self.total)}\0{id(self.available)}\0{id(self.labels)}"
        )


@dataclass(frozen=True)
class Offering:
    """A machine of a node type that can be bought: where, on which market, for how much.

    `resources` fill in what the YAML does not declare. `labels` are those that such a machine
    will carry beyond its type's own (zone, market). An unknown price is None.
    """

    node_type: str
    market: Market = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    resources: Resources = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchFailure:
    """An offer that could not be had at some time, or a machine that could not be set up."""

    node_type: str
    at: float
    kind: FailureKind = "capacity"
    market: Market = "on-demand"
    zone: str = ""


@dataclass(frozen=True)
class History:
    """What the planner remembers from one call to the next. It comes back in the Plan; the
    caller adds failures and hands it in again."""

    failures: tuple[LaunchFailure, ...] = ()
    # node types that are not to be tried again for now, and why
    given_up: Mapping[str, str] = field(default_factory=dict)
    # nodes on their way that nothing has needed, and since when
    unneeded_since: Mapping[str, float] = field(default_factory=dict)
    # `initial_workers` were all there once
    brought_up: bool = False
    # since when nothing has been pending or on its way
    quiet_since: float | None = None
    # node types, with counts, that consolidation is waiting for, and until when
    replacing: Mapping[str, int] = field(default_factory=dict)
    replacing_until: float = 0.0

    def after(self, failure: LaunchFailure) -> History:
        """This history with one more failure."""
        return replace(self, failures=(*self.failures, failure))

    def after_success(self, node_type: str, market: Market, zone: str) -> History:
        """This history once such an offer was had: its failures are no longer in a row."""
        kept = (
            f for f in self.failures if (f.node_type, f.market, f.zone) != (node_type, market, zone)
        )
        return replace(self, failures=tuple(kept))
