"""When a cluster counts as ready, from data alone."""

from __future__ import annotations

import pytest

from shoal.cli.status import status_lines
from shoal.core.node_phase import Phase
from shoal.ops.status import ClusterStatus, NodeStatus


def cluster(*phases: Phase) -> ClusterStatus:
    """A head and workers in these phases."""
    nodes = [
        NodeStatus(
            name=f"worker-{number}" if number else "head",
            node_type="t",
            role="worker" if number else "head",
            phase=phase,
            detail="",
            address="",
            age_s=None,
        )
        for number, phase in enumerate(phases)
    ]
    return ClusterStatus("c", "local", tuple(nodes))


@pytest.mark.parametrize("leaving", [Phase.DRAINING, Phase.TERMINATING])
def test_a_cluster_that_drains_a_worker_is_ready(leaving: Phase) -> None:
    shrinking = cluster(Phase.READY, leaving)
    assert shrinking.ready
    assert status_lines(shrinking)[0].endswith("1 of 1 nodes ready, 1 leaving")


@pytest.mark.parametrize("phase", [Phase.BOOTING, Phase.STARTING, Phase.FAILED, Phase.GONE])
def test_a_cluster_with_a_missing_worker_is_not_ready(phase: Phase) -> None:
    assert not cluster(Phase.READY, phase).ready


def test_a_cluster_whose_head_terminates_is_not_ready() -> None:
    assert not cluster(Phase.TERMINATING).ready
    assert not cluster(Phase.TERMINATING, Phase.READY).ready
