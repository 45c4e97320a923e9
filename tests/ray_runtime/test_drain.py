"""What Ray does with a node that drains: the controller relies on it, whatever the release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import home_for_a_while

pytestmark = [pytest.mark.ray, pytest.mark.long]

YAML = """
cluster_name: drains
provider: {type: embedded}
available_node_types:
  head: {resources: {CPU: 0}}
  worker: {resources: {CPU: 1}, min_workers: 2, max_workers: 2}
head_node_type: head
shoal: {controller: false}
"""

# An actor on one of two nodes, which holds nothing once it runs; then both nodes drain.
PROGRAM = """
import json, time
import ray
from shoal.ray_runtime.gcs_client import Gcs

ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote
class Actor:
    def where(self):
        return ray.get_runtime_context().get_node_id()

def nodes():
    return {n.ray_id: n for n in gcs.read().nodes.values() if n.node_type == "worker"}

def seconds_until(condition):
    began = time.monotonic()
    while not condition() and time.monotonic() - began < 60:
        time.sleep(0.1)
    return time.monotonic() - began

gcs = Gcs(ray.get_runtime_context().gcs_address)
actor = Actor.remote()
there = ray.get(actor.where.remote(), timeout=60)
seconds_until(lambda: len(nodes()) == 2)
(other,) = set(nodes()) - {there}
told = {"agreed": gcs.drain_idle(there, "a test")[0]}
seconds_until(lambda: nodes()[there].available == nodes()[there].total)
for node in (there, other):
    gcs.drain_busy(node, "a test", time.time() + 3600)
told["empty left after"] = seconds_until(lambda: other not in nodes())
seconds_until(lambda: nodes()[there].status == "draining")
began = time.monotonic()
while time.monotonic() - began < 8:
    node = nodes()[there]
    assert ray.get(actor.where.remote(), timeout=5) == there
    time.sleep(0.2)
told["figures are those of an idle node"] = node.available == node.total
told["idle for"] = node.idle_s
ray.kill(actor)
told["other left after"] = seconds_until(lambda: there not in nodes())
print(json.dumps(told))
"""


def test_a_node_that_drains_leaves_as_soon_as_nothing_runs_on_it_and_not_before(
    tmp_path: Path,
) -> None:
    file, program = tmp_path / "drains.yaml", tmp_path / "program.py"
    file.write_text(YAML)
    program.write_text(PROGRAM)
    with home_for_a_while() as home:
        done = home.shoal("up", str(file))
        assert done.returncode == 0, done.stderr
        done = home.shoal("exec", "drains", f"python {program}")
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert told["agreed"] is False, "an actor is work, whatever it holds"
    assert told["figures are those of an idle node"] is True
    assert told["empty left after"] < 20
    assert told["other left after"] < 20
