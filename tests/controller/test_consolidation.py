"""Consolidation on real Ray: one embedded cluster, whose controller consolidates after seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import temporary_home
from tests.controller.elastic_cluster import Elastic, until

pytestmark = [pytest.mark.ray, pytest.mark.long]

# Imported by every Python on this path, including the controller's.
SHORT_QUIET_TIME = "import shoal.scaling.planner as planner\nplanner.QUIET_S = 3.0\n"

YAML = """
cluster_name: elastic
max_workers: 2
idle_timeout_minutes: 10
provider: {type: embedded}
available_node_types:
  head: {resources: {CPU: 0}}
  worker: {resources: {CPU: 2}, max_workers: 2}
head_node_type: head
shoal: {consolidate: true}
"""

# Fills two nodes with tasks, leaves on each one task with a CPU and one without, and checks that
# they finish. A task ends when its file exists.
MOVING = """
import pathlib, ray, sys, time
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(log_to_driver=False, logging_level="ERROR")
here = pathlib.Path(sys.argv[1]).parent

@ray.remote(max_retries=0)
def work(name):
    (here / f"{name}.new").write_text(ray.get_runtime_context().get_node_id())
    (here / f"{name}.new").rename(here / f"{name}.at")
    wait_for(here / f"{name}.end")
    return True

@ray.remote(num_cpus=1)
def where():
    return ray.get_runtime_context().get_node_id()

def wait_for(path, seconds=300):
    until = time.monotonic() + seconds
    while not pathlib.Path(path).exists():
        assert time.monotonic() < until, path
        time.sleep(0.1)

def node_of(name):
    wait_for(here / f"{name}.at", 90)
    return (here / f"{name}.at").read_text()

def end(name):
    (here / f"{name}.end").touch()
    return ray.get(tasks[name], timeout=60)

tasks = {f"task-{n}": work.options(num_cpus=1).remote(f"task-{n}") for n in range(4)}
by_node = {}
for name in tasks:
    by_node.setdefault(node_of(name), []).append(name)
assert len(by_node) == 2, by_node
stay, quiet = {}, {}
for node, (one, *others) in by_node.items():
    stay[node], quiet[node] = one, f"quiet-{one}"
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    options = work.options(num_cpus=0, scheduling_strategy=there)
    tasks[quiet[node]] = options.remote(quiet[node])
    assert node_of(quiet[node]) == node
    for other in others:
        end(other)
pathlib.Path(sys.argv[1]).touch()
wait_for(sys.argv[2])
new = ray.get(where.remote(), timeout=60)
(left,) = set(stay) - {new}
print("the task there is done:", end(stay[left]))
try:
    ray.get(tasks[quiet[left]], timeout=6)
except GetTimeoutError:
    print("one that holds nothing goes on")
print("until it is done, too:", end(quiet[left]))
wait_for(sys.argv[3])
print("and the others:", end(stay[new]), end(quiet[new]))
"""


def test_a_node_whose_load_fits_elsewhere_is_drained_and_terminated_when_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHORT_QUIET_TIME)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with temporary_home() as home:
        elastic = Elastic(home, tmp_path, {"moving": MOVING})
        elastic.yaml.write_text(YAML)
        elastic.up()
        _check_consolidation(elastic, tmp_path)


def _check_consolidation(elastic: Elastic, tmp_path: Path) -> None:
    spread, drained, gone = (tmp_path / name for name in ("spread", "drained", "gone"))
    program = elastic.start("moving", spread, drained, gone)
    until(spread.exists, 150)
    until(lambda: len(elastic.workers("draining")) == 1)
    (draining,) = elastic.workers("draining")
    assert "fits on other nodes" in draining["ended"]
    drained.touch()
    until(lambda: len(elastic.home.instance_ids()) == 2)
    assert draining["id"] not in elastic.home.instance_ids()
    gone.touch()
    printed = program.communicate(timeout=60)[0]
    assert "the task there is done: True" in printed
    assert "one that holds nothing goes on" in printed
    assert "until it is done, too: True" in printed
    assert "and the others: True True" in printed
