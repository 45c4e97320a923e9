"""Fewer nodes for the same work, on real Ray: one embedded cluster, whose controller takes seconds
for a quiet while."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import home_for_a_while
from tests.controller.elastic import Elastic, until

pytestmark = [pytest.mark.ray, pytest.mark.long]

# Loaded by every Python that finds it, the controller's among them.
HURRY = "import shoal.scaling.planner as planner\nplanner.QUIET_S = 3.0\n"

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

# Fills two nodes with actors, leaves one on each, and beside it one that holds nothing, and sees
# what becomes of them.
MOVING = """
import pathlib, ray, sys, time
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(max_restarts=-1)
class Actor:
    def where(self):
        return ray.get_runtime_context().get_node_id()

@ray.remote(num_cpus=1)
def where():
    return ray.get_runtime_context().get_node_id()

def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.1)

actors = [Actor.options(num_cpus=1).remote() for _ in range(4)]
by_node = {}
for actor in actors:
    by_node.setdefault(ray.get(actor.where.remote(), timeout=90), []).append(actor)
assert len(by_node) == 2, by_node
stay, quiet = {}, {}
for node, (one, *others) in by_node.items():
    stay[node] = one
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    quiet[node] = Actor.options(num_cpus=0, scheduling_strategy=there).remote()
    assert ray.get(quiet[node].where.remote(), timeout=60) == node
    for other in others:
        ray.kill(other)
pathlib.Path(sys.argv[1]).touch()
wait_for(sys.argv[2])
new = ray.get(where.remote(), timeout=60)
(left,) = set(stay) - {new}
print("the actor there lives on:", ray.get(stay[left].where.remote(), timeout=10) == left)
ray.kill(stay[left])
until = time.monotonic() + 6
while time.monotonic() < until:
    assert ray.get(quiet[left].where.remote(), timeout=10) == left
    time.sleep(0.2)
print("so does one that holds nothing")
ray.kill(quiet[left])
wait_for(sys.argv[3])
print("the other one too:", ray.get(stay[new].where.remote(), timeout=10) == new)
"""


def test_a_node_whose_load_fits_elsewhere_takes_no_more_work_and_goes_when_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HURRY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with home_for_a_while() as home:
        elastic = Elastic(home, tmp_path, {"moving": MOVING})
        elastic.yaml.write_text(YAML)
        elastic.up()
        _see_it_shrink(elastic, tmp_path)


def _see_it_shrink(elastic: Elastic, tmp_path: Path) -> None:
    spread, drained, gone = (tmp_path / name for name in ("spread", "drained", "gone"))
    program = elastic.start("moving", spread, drained, gone)
    until(spread.exists, 150)
    until(lambda: len(elastic.workers("draining")) == 1)
    (draining,) = elastic.workers("draining")
    assert "fits on other nodes" in draining["ended"]
    drained.touch()
    until(lambda: len(elastic.home.machines()) == 2)
    assert draining["id"] not in elastic.home.machines()
    gone.touch()
    printed = program.communicate(timeout=60)[0]
    assert "the actor there lives on: True" in printed
    assert "so does one that holds nothing" in printed
    assert "the other one too: True" in printed
