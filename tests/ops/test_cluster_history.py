"""The history of a cluster as the page shows it."""

from __future__ import annotations

import json

from shoal.controller.state import Decision
from shoal.controller.status_file import ControllerStatus
from shoal.costs.ledger import UsageRecord
from shoal.ops.cluster_history import ClusterHistory, cost_curves


def node_line(phase: str, since: float, **more: object) -> str:
    node = {"id": "i-1", "name": "worker-1", "node_type": "gpu", "role": "worker"}
    return json.dumps({"kind": "node", **node, "phase": phase, "since": since, **more})


def test_the_phases_of_a_node_keep_their_times_and_reasons() -> None:
    history = ClusterHistory()
    history.add_history([node_line("booting", 1, why="a task waits"), node_line("ready", 9)])
    assert [(row.at, row.phase) for row in history.phases] == [(1, "booting"), (9, "ready")]
    assert history.phases[0].why == "a task waits"


def test_damaged_lines_are_counted_and_skipped() -> None:
    history = ClusterHistory()
    decision = '{"kind": "decision", "at": 1, "action": "launch", "subject": "x", "why": "y"}'
    damaged = ['{"kind": "nod', "7", "[]", '{"kind": "node"}', node_line("sleeping", 1)]
    history.add_history([*damaged, decision, decision.replace("1", '"1"')])
    history.add_samples(['{"at": 1}', '{"waiting": 1}', "null"])
    assert len(history.decisions) == 1
    assert len(history.samples) == 1
    assert history.unreadable == 8


def test_unknown_fields_of_a_newer_controller_are_ignored() -> None:
    history = ClusterHistory()
    history.add_history([node_line("ready", 1, colour="blue")])
    assert history.phases and not history.unreadable


def test_a_status_supplies_what_the_history_lacks() -> None:
    history = ClusterHistory()
    history.add_history([node_line("booting", 1)])
    node = json.loads(node_line("ready", 5)) | {"created": 1.0}
    status = ControllerStatus(
        6.0, 1, "c", nodes=(node,), decisions=(Decision(2.0, "launch", "1 x gpu", "waits"),)
    )
    history.add_status(status)
    history.add_status(status)
    assert [row.phase for row in history.phases] == ["booting", "ready"]
    assert len(history.decisions) == 1


def test_a_full_history_keeps_its_newer_half() -> None:
    history = ClusterHistory()
    history.samples = []
    history.add_samples(json.dumps({"at": at}) for at in range(40_001))
    assert history.is_full
    newer = history.newer_half()
    assert not newer.is_full
    assert newer.samples[-1].at == 40_000


def test_cost_grows_while_an_instance_runs_and_stays_after_it() -> None:
    ended = UsageRecord("i-1", "gpu", "spot", "", 3.6, 0.0, 100.0, 100.0)
    running = UsageRecord("i-2", "gpu", "spot", "", 7.2, 50.0, 60.0)
    other = UsageRecord("i-3", "cpu", "on-demand", "", None, 0.0, 60.0)
    (curve,) = cost_curves([ended, running, other], 200.0, {"i-2"})
    assert (curve.node_type, curve.market) == ("gpu", "spot")
    rounded = [(at, round(cost, 6)) for at, cost in curve.points]
    assert rounded == [(0.0, 0.0), (50.0, 0.05), (100.0, 0.2), (200.0, 0.4)]


def test_a_curve_of_many_instances_has_few_points_and_the_right_end() -> None:
    records = [UsageRecord(f"i-{n}", "gpu", "", "", 3.6, n, n + 10.0, n + 10.0) for n in range(999)]
    (curve,) = cost_curves(records, 5000.0, ())
    assert len(curve.points) <= 250
    assert round(curve.points[-1][1], 3) == 9.99
