"""Worker targets of Ray's old autoscaler: `target_utilization_fraction` and `initial_workers`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.core.node_phase import Phase
from shoal.scaling.inputs import History
from shoal.scaling.snapshot import ClusterSnapshot


@dataclass(frozen=True)
class LegacyTargets:
    """How many workers each legacy setting requires; 0 if it is not set."""

    initial: int
    utilization: int

    @property
    def min_workers(self) -> int:
        """The workers that both settings together require."""
        return max(self.initial, self.utilization)


def legacy_targets(
    snapshot: ClusterSnapshot, history: History, *, has_pending_work: bool
) -> LegacyTargets:
    """The targets at this load."""
    scaling = snapshot.spec.scaling
    if scaling.target_utilization_fraction is None and scaling.initial_workers is None:
        return LegacyTargets(0, 0)
    used = _nodes_in_use(snapshot)
    return LegacyTargets(
        initial=_initial(snapshot, history, has_work=has_pending_work or used > 0),
        utilization=_utilization(snapshot, used),
    )


def _nodes_in_use(snapshot: ClusterSnapshot) -> float:
    """The used capacity in nodes: the sum over ready nodes of their most used resource's share."""
    used = []
    for node, count in snapshot.serving:
        if node.phase is not Phase.READY:
            continue
        shares = [
            1.0 - node.available.get(name, 0.0) / total
            for name, total in node.total.items()
            if total > 0 and not name.startswith("node:")
        ]
        used.append(count * max(shares, default=0.0))
    return math.fsum(used)


def _utilization(snapshot: ClusterSnapshot, used: float) -> int:
    """How many workers keep the share of nodes in use at the target; the head counts as a node."""
    target = snapshot.spec.scaling.target_utilization_fraction
    if target is None or target <= 0:
        return 0
    # Subtract an epsilon, so that 8 nodes in use at 0.8 give 10, not 11 by rounding.
    return max(0, math.ceil(used / target - 1e-9) - 1)


def _initial(snapshot: ClusterSnapshot, history: History, *, has_work: bool) -> int:
    """All of `initial_workers` until the cluster has had them once; later, in aggressive mode,
    whenever there is any work."""
    scaling = snapshot.spec.scaling
    if scaling.initial_workers is None:
        return 0
    is_restored = scaling.autoscaling_mode == "aggressive" and has_work
    return scaling.initial_workers if is_restored or not history.initial_workers_reached else 0
