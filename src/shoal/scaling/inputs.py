"""The planner's inputs: nodes, offerings, and the history of earlier planning passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from shoal.core.node_phase import Phase
from shoal.scaling.demand import Resources

Market = Literal["on-demand", "spot"]
FailureKind = Literal["capacity", "quota", "setup"]

LAUNCHING_PHASES = frozenset(
    {Phase.REQUESTED, Phase.BOOTING, Phase.REACHABLE, Phase.PREPARING, Phase.STARTING}
)
# A terminating node no longer counts against a limit.
COUNTED_PHASES = LAUNCHING_PHASES | {Phase.READY, Phase.DRAINING}


@dataclass(frozen=True)
class NodeView:
    """One node as the planner sees it.

    `total`, `available` and `idle_s` are Ray's figures; a launching node has none yet and counts
    with the resources of its type. `restartable` means that everything that runs here may be moved.
    `throttled` is copied from the launch: whether it counted against `upscaling_speed`. An
    `interrupted` node will lose its instance: it offers no capacity, and its work needs another
    node. An `outdated` node was launched from settings that have changed since. An `unreachable`
    node counts against the limits, but it is not removed, and no other node is removed because of
    it: it may be back in a moment.
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
    interrupted: bool = False
    outdated: bool = False
    unreachable: bool = False

    @cached_property
    def group_key(self) -> str:
        """Equal for nodes that differ only in id and idle time, provided that they share the
        mappings that describe them: thousands of such nodes are counted as one group. A string,
        because it is looked up far more often than made and caches its hash."""
        return (
            f"{self.node_type}\0{self.phase.value}\0{self.is_head}\0{self.idle_s > 0}\0"
            f"{self.market}\0{self.zone}\0{self.price_per_hour}\0{self.throttled}\0"
            f"{self.unreachable}\0"
            f"{id(self.total)}\0{id(self.available)}\0{id(self.labels)}"
        )


@dataclass(frozen=True)
class Offering:
    """An instance of a node type in a zone on a market at a price.

    `resources` fill in what the YAML does not declare. `labels` are added to those of the type
    (zone, market). An unknown price is None. `disks` are its volumes as text, and
    `disks_per_hour` is what they cost in addition.
    """

    node_type: str
    market: Market = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    resources: Resources = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    disks: str = ""
    disks_per_hour: float = 0.0


@dataclass(frozen=True)
class LaunchFailure:
    """A launch of an offering that failed, or an instance that could not be set up."""

    node_type: str
    at: float
    kind: FailureKind = "capacity"
    market: Market = "on-demand"
    zone: str = ""


@dataclass(frozen=True)
class History:
    """What the planner remembers between calls. Each Plan returns the next History; the caller adds
    failures and passes it in again."""

    failures: tuple[LaunchFailure, ...] = ()
    # node types that are not launched until `shoal up` runs again, with the reason
    blocked: Mapping[str, str] = field(default_factory=dict)
    # launching nodes that nothing needs, and since when
    unneeded_since: Mapping[str, float] = field(default_factory=dict)
    # whether the cluster has had `initial_workers` once
    initial_workers_reached: bool = False
    # since when nothing has been pending or launching
    quiet_since: float | None = None
    # replacements that consolidation has launched, by node type, and until when it waits for them
    replacements: Mapping[str, int] = field(default_factory=dict)
    replacements_until: float = 0.0

    def with_failure(self, failure: LaunchFailure) -> History:
        """This history with one more failure."""
        return replace(self, failures=(*self.failures, failure))

    def with_success(self, node_type: str, market: Market, zone: str) -> History:
        """This history after a successful launch: earlier failures no longer count."""
        failures = (
            f for f in self.failures if (f.node_type, f.market, f.zone) != (node_type, market, zone)
        )
        return replace(self, failures=tuple(failures))
