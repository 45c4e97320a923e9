"""Nodes beyond a maximum, as when it was lowered or a type left the file.

Those on their way and idle ones go at once; busy ones stay until they are idle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shoal.core.node_phase import Phase
from shoal.scaling.scaling_plan import Cause, PlannedCancel, PlannedDrain, Reason
from shoal.scaling.snapshot import ClusterSnapshot


@dataclass
class OverLimit:
    """What to end, and how many beyond each limit are busy."""

    drains: list[PlannedDrain] = field(default_factory=list)
    cancels: list[PlannedCancel] = field(default_factory=list)
    busy: Counter[str] = field(default_factory=Counter)

    @property
    def leaving(self) -> set[str]:
        """The ids of all that end."""
        return {d.node_id for d in self.drains} | {c.node_id for c in self.cancels}


def over_limit(census: ClusterSnapshot) -> OverLimit:
    """What is there beyond the limits of each type and of the cluster."""
    result = OverLimit()
    spec = census.spec
    for name, count in sorted(census.by_type.items()):
        node_type = spec.node_types.get(name)
        beyond = count - (node_type.max_workers if node_type else 0)
        what = f"max_workers of {name}" if node_type else f"the file, which has no type {name},"
        _end(result, census, name, beyond, what)
    beyond = census.worker_count - len(result.leaving) - spec.scaling.max_workers
    _end(result, census, None, beyond, "max_workers")
    return result


def _end(
    result: OverLimit, census: ClusterSnapshot, node_type: str | None, beyond: int, what: str
) -> None:
    if beyond <= 0:
        return
    nodes = census.workers(node_type)
    # Those that are draining are on their way out already.
    beyond -= sum(n.phase is Phase.DRAINING for n in nodes)
    leaving = result.leaving
    able = [
        n
        for n in nodes
        if n.id not in leaving
        and n.phase is not Phase.DRAINING
        and (n.phase is not Phase.READY or n.idle_s > 0)
    ]
    ended = sorted(able, key=census.first_to_go)[: max(0, beyond)]
    for node in ended:
        text = f"{len(nodes)} nodes are {beyond} more than {what} allows"
        reason = Reason(Cause.OVER_LIMIT, text, {"nodes": len(nodes), "beyond": beyond})
        if node.phase is Phase.READY:
            result.drains.append(PlannedDrain(node.id, node.node_type, reason))
        else:
            result.cancels.append(PlannedCancel(node.id, node.node_type, reason))
    if beyond > len(ended):
        result.busy[what] += beyond - len(ended)
