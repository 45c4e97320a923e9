"""When a cluster counts as ready, from data alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click import unstyle

from shoal.cli.status import status_lines
from shoal.controller.status_file import ControllerStatus
from shoal.controller.status_reader import StatusReport
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


def test_a_cluster_without_its_min_workers_is_not_ready() -> None:
    incomplete = replace(cluster(Phase.READY), missing={"w": 1})
    assert not incomplete.ready
    title, *rest = status_lines(incomplete)
    assert title.endswith("1 of 2 nodes ready")
    assert "missing: 1 x w (min_workers)" in map(unstyle, rest)


def test_totals_are_those_of_the_nodes_that_are_shown() -> None:
    """The controller's own count may be older than the list of nodes."""
    nodes = [
        replace(node, total={"CPU": 1.0, "GPU": 2.0}, available={"CPU": 1.0, "GPU": 0.5})
        for node in cluster(Phase.READY, Phase.READY, Phase.READY).nodes
    ]
    state = ControllerStatus(
        at=0, pid=1, cluster="c", usage={"CPU": (0.0, 2.0)}, limits={"max_workers": 4},
        autostop_at=1700.0,
    )  # fmt: skip
    status = replace(
        cluster(Phase.READY),
        nodes=tuple(nodes),
        controller=StatusReport(state, age_s=1.0, read_at=1000.0),
    )
    (line,) = [line for line in status_lines(status) if "of at most" in line]
    assert line.startswith(
        "2 of at most 4 workers, 0 of 3 CPU in use, 4.5 of 6 GPU in use, autostop in 11m"
    )
