"""The lifecycle of a node: legal phase transitions, a deadline for every phase, and the one
function that applies them. Pure; an illegal transition is refused, never raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.core.node_phase import PENDING_PHASES, Phase, Role

_PENDING = PENDING_PHASES - {Phase.REQUESTED}
_END = frozenset({Phase.TERMINATING, Phase.GONE})
_FAILED_OR_END = frozenset({Phase.FAILED, Phase.STOPPED}) | _END

# A pending node may skip phases, since not every provider reports each, and may go back when its
# connection breaks; a ready one goes back to booting when its Ray is lost.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.REQUESTED: _PENDING | _FAILED_OR_END,
    **{phase: _PENDING | {Phase.READY} | _FAILED_OR_END for phase in _PENDING},
    Phase.READY: frozenset({Phase.DRAINING, Phase.BOOTING}) | _FAILED_OR_END,
    Phase.DRAINING: frozenset({Phase.READY}) | _FAILED_OR_END,
    Phase.TERMINATING: _END,
    Phase.FAILED: frozenset({Phase.BOOTING, Phase.READY}) | _END,
    Phase.STOPPED: frozenset({Phase.BOOTING, Phase.READY}) | _END,
    Phase.GONE: frozenset(),
}

# How long a node may stay in a phase, and which phase follows. Single bootstrap steps have shorter
# deadlines; these catch what those miss. Ready and stopped nodes have no deadline; a draining one
# has until its work is done, or until its interruption.
DEADLINES: Mapping[Phase, tuple[float, Phase]] = {
    Phase.REQUESTED: (600.0, Phase.FAILED),
    # Bare metal takes that long in the worst case; the wait for SSH is shorter for other types.
    Phase.BOOTING: (3600.0, Phase.FAILED),
    Phase.REACHABLE: (600.0, Phase.FAILED),
    Phase.PREPARING: (7200.0, Phase.FAILED),
    Phase.STARTING: (900.0, Phase.FAILED),
    # Terminated again: a provider that accepted the call may have lost it.
    Phase.TERMINATING: (20.0, Phase.TERMINATING),
    Phase.FAILED: (60.0, Phase.TERMINATING),
}


@dataclass(frozen=True)
class Node:
    """An instance's life in the cluster.

    `since` is when it entered its phase; `why` is the reason it was launched; `ended` is the reason
    it is leaving or has left, empty while it should stay; `restarts` counts how often its Ray was
    restarted. `interruption` is "termination" when the provider will terminate the instance, at
    `terminates_at`, and "rebalance" when it may.
    """

    id: str
    name: str
    node_type: str
    role: Role
    phase: Phase
    since: float
    created: float
    address: str = ""
    why: str = ""
    ended: str = ""
    detail: str = ""
    restarts: int = 0
    throttled: bool = True
    market: str = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    extras_per_hour: float = 0.0
    interruption: str = ""
    terminates_at: float | None = None

    @property
    def is_pending(self) -> bool:
        """Whether it was requested and has not been ready yet."""
        return self.phase in PENDING_PHASES


def with_phase(node: Node, phase: Phase, now: float, detail: str = "") -> Node | None:
    """The node in a new phase, or None if the transition is illegal. The same phase with another
    detail keeps `since`."""
    if phase is node.phase:
        return replace(node, detail=detail)
    if phase not in TRANSITIONS[node.phase]:
        return None
    return replace(node, phase=phase, since=now, detail=detail)


def overdue_phase(node: Node, now: float) -> Phase | None:
    """The phase that a node must enter because its current one took too long; None before the
    deadline. A node that drains for a termination notice has until the termination; for a rebalance
    recommendation, running work is not cut short."""
    if node.phase is Phase.DRAINING and node.interruption:
        is_late = node.terminates_at is not None and now >= node.terminates_at
        return Phase.TERMINATING if is_late else None
    limit = DEADLINES.get(node.phase)
    if limit is None or now - node.since < limit[0]:
        return None
    return limit[1]
