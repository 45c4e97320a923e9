"""The metrics, as Prometheus reads them."""

from __future__ import annotations

import urllib.request

from shoal.controller.lifecycle import Node
from shoal.controller.state import ControllerState, Decision, NodeUpdated
from shoal.controller.status_publisher import Metrics
from shoal.core.node_phase import Phase


def read(metrics: Metrics) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("shoal_"))
    return {name: float(value) for name, value in pairs}


def worker(phase: Phase) -> NodeUpdated:
    return NodeUpdated(Node("i-1", "worker-1", "gpu", "worker", phase, 0.0, 0.0))


def test_metrics_of_a_type_are_zero_when_its_last_node_has_gone() -> None:
    metrics, state = Metrics("127.0.0.1", since=0.0, port=0), ControllerState()
    terminating = 'shoal_nodes{node_type="gpu",phase="terminating"}'
    state.apply(worker(Phase.TERMINATING))
    metrics.observe(state, 0, 0.0, 0.1)
    assert read(metrics)[terminating] == 1
    state.apply(worker(Phase.GONE))
    metrics.observe(state, 0, 0.0, 0.1)
    assert read(metrics)[terminating] == 0


def test_a_restarted_controller_counts_only_its_own_decisions() -> None:
    state = ControllerState()
    state.apply(Decision(10.0, "launch", "1 x gpu", "one waits"))
    metrics = Metrics("127.0.0.1", since=20.0, port=0)
    metrics.observe(state, 0, 0.0, 0.1)
    state.apply(Decision(30.0, "launch", "1 x gpu", "one waits"))
    metrics.observe(state, 0, 0.0, 0.1)
    metrics.observe(state, 0, 0.0, 0.1)
    assert read(metrics)['shoal_decisions_total{action="launch"}'] == 1


def test_two_controllers_on_one_machine_use_different_ports() -> None:
    first = Metrics("127.0.0.1", since=0.0, port=0)
    taken = int(first.address.rpartition(":")[2])
    second = Metrics("127.0.0.1", since=0.0, port=taken)
    assert second.address != first.address
    assert read(second)["shoal_waiting"] == 0
