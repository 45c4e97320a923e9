"""A node's life: the table of legal moves, a deadline for every phase, and the one function that
applies them. Pure; what cannot be is refused, never raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.core.node_phase import Phase, Role

_ON_THE_WAY = (Phase.BOOTING, Phase.REACHABLE, Phase.PREPARING, Phase.STARTING)
_ENDS = frozenset({Phase.TERMINATING, Phase.GONE})
_TROUBLE = frozenset({Phase.FAILED, Phase.STOPPED}) | _ENDS

# A node on its way may skip phases, since not every provider shows each, and may fall back when
# its connection breaks; a ready one falls back to booting when its Ray is lost.
LEGAL: Mapping[Phase, frozenset[Phase]] = {
    Phase.REQUESTED: frozenset(_ON_THE_WAY) | _TROUBLE,
    **{phase: frozenset(_ON_THE_WAY) | {Phase.READY} | _TROUBLE for phase in _ON_THE_WAY},
    Phase.READY: frozenset({Phase.DRAINING, Phase.BOOTING}) | _TROUBLE,
    Phase.DRAINING: frozenset({Phase.READY}) | _TROUBLE,
    Phase.TERMINATING: _ENDS,
    Phase.FAILED: frozenset({Phase.BOOTING, Phase.READY}) | _ENDS,
    Phase.STOPPED: frozenset({Phase.BOOTING, Phase.READY}) | _ENDS,
    Phase.GONE: frozenset(),
}

# How long a node may stay in a phase, and what it is then. Single steps have shorter deadlines
# of their own; these catch what those miss. A ready node may stay so, and a stopped one; one that
# drains has until its work is done, or until the time that a notice names.
DEADLINES: Mapping[Phase, tuple[float, Phase]] = {
    Phase.REQUESTED: (600.0, Phase.FAILED),
    Phase.BOOTING: (900.0, Phase.FAILED),
    Phase.REACHABLE: (600.0, Phase.FAILED),
    Phase.PREPARING: (7200.0, Phase.FAILED),
    Phase.STARTING: (900.0, Phase.FAILED),
    # Ordered again: a provider that said yes once may have lost the order.
    Phase.TERMINATING: (20.0, Phase.TERMINATING),
    Phase.FAILED: (60.0, Phase.TERMINATING),
}


@dataclass(frozen=True)
class Node:
    """An instance's life in the cluster. `since` is when it entered its phase, `why` says why it
    exists, `ended` why it no longer should; `tries` counts how often it was brought back. `notice`
    says that its machine will be taken away (`end`, at `taken_at`) or may well be (`risk`)."""

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
    tries: int = 0
    throttled: bool = True
    market: str = "on-demand"
    zone: str = ""
    price_per_hour: float | None = None
    notice: str = ""
    taken_at: float | None = None

    @property
    def on_the_way(self) -> bool:
        return self.phase in _ON_THE_WAY or self.phase is Phase.REQUESTED


def moved(node: Node, phase: Phase, now: float, detail: str = "") -> Node | None:
    """The node after a move, or None if the table has no such move. Staying in a phase with
    something new to say keeps the time at which it was entered."""
    if phase is node.phase:
        return replace(node, detail=detail)
    if phase not in LEGAL[node.phase]:
        return None
    return replace(node, phase=phase, since=now, detail=detail)


def overdue(node: Node, now: float) -> Phase | None:
    """What a node has to become because its phase took too long; None if it has time. One that
    leaves because of a notice has until its machine is taken away; for a mere risk, nobody's work
    is cut short."""
    if node.phase is Phase.DRAINING and node.notice:
        late = node.taken_at is not None and now >= node.taken_at
        return Phase.TERMINATING if late else None
    limit = DEADLINES.get(node.phase)
    if limit is None or now - node.since < limit[0]:
        return None
    return limit[1]
