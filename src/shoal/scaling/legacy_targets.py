"""The old autoscaler's settings, with their old meaning: a target for how busy the nodes are,
and a number of workers to begin with."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.core.node_phase import Phase
from shoal.scaling.inputs import History
from shoal.scaling.snapshot import ClusterSnapshot


@dataclass(frozen=True)
class Targets:
    """How many workers the old settings ask for, each for its own reason; 0 if not at all."""

    initial: int
    utilization: int

    @property
    def least(self) -> int:
        """The workers that must be there for either reason."""
        return max(self.initial, self.utilization)


def targets(census: ClusterSnapshot, history: History, *, waiting: bool) -> Targets:
    """What the old settings ask for now; `waiting` tells whether any work does."""
    scaling = census.spec.scaling
    if scaling.target_utilization_fraction is None and scaling.initial_workers is None:
        return Targets(0, 0)
    used = _nodes_in_use(census)
    return Targets(
        initial=_initial(census, history, wanted=waiting or used > 0),
        utilization=_utilization(census, used),
    )


def _nodes_in_use(census: ClusterSnapshot) -> float:
    """How many nodes' worth of room is taken: every ready node counts with the share of its
    most used resource."""
    used = []
    for node, count in census.serving:
        if node.phase is not Phase.READY:
            continue
        shares = [
            1.0 - node.available.get(name, 0.0) / total
            for name, total in node.total.items()
            if total > 0 and not name.startswith("node:")
        ]
        used.append(count * max(shares, default=0.0))
    return math.fsum(used)


def _utilization(census: ClusterSnapshot, used: float) -> int:
    """How many workers keep the share of nodes in use at the target; the head counts as a node."""
    target = census.spec.scaling.target_utilization_fraction
    if target is None or target <= 0:
        return 0
    # A hair less, so that 8 nodes in use at 0.8 are 10 and not, by rounding, 11.
    return max(0, math.ceil(used / target - 1e-9) - 1)


def _initial(census: ClusterSnapshot, history: History, *, wanted: bool) -> int:
    """How many workers to begin with: all of `initial_workers` until they have been there once;
    later, in aggressive mode, whenever any work is there at all."""
    scaling = census.spec.scaling
    if scaling.initial_workers is None:
        return 0
    again = scaling.autoscaling_mode == "aggressive" and wanted
    return scaling.initial_workers if again or not history.brought_up else 0
