"""How Ray drains a node: behaviour of every release that the controller relies on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import temporary_home

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

# An actor on one of two nodes, which holds no resources once it runs; then both nodes drain.
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
    started = time.monotonic()
    while not condition() and time.monotonic() - started < 60:
        time.sleep(0.1)
    return time.monotonic() - started

gcs = Gcs(ray.get_runtime_context().gcs_address)
actor = Actor.remote()
occupied = ray.get(actor.where.remote(), timeout=60)
seconds_until(lambda: len(nodes()) == 2)
(empty,) = set(nodes()) - {occupied}
result = {"accepted": gcs.drain_idle(occupied, "a test")[0]}
seconds_until(lambda: nodes()[occupied].available == nodes()[occupied].total)
for node in (occupied, empty):
    gcs.drain_by_deadline(node, "a test", time.time() + 3600)
result["empty node left after"] = seconds_until(lambda: empty not in nodes())
seconds_until(lambda: nodes()[occupied].status == "draining")
started = time.monotonic()
while time.monotonic() - started < 8:
    node = nodes()[occupied]
    assert ray.get(actor.where.remote(), timeout=5) == occupied
    time.sleep(0.2)
result["looks idle"] = node.available == node.total
result["idle for"] = node.idle_s
ray.kill(actor)
result["actor node left after"] = seconds_until(lambda: occupied not in nodes())
print(json.dumps(result))
"""


def test_draining_node_leaves_when_nothing_runs_on_it_and_not_before(
    tmp_path: Path,
) -> None:
    file, program = tmp_path / "drains.yaml", tmp_path / "program.py"
    file.write_text(YAML)
    program.write_text(PROGRAM)
    with temporary_home() as home:
        done = home.shoal("up", str(file))
        assert done.returncode == 0, done.stderr
        done = home.shoal("exec", "drains", f"python {program}")
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    assert result["accepted"] is False, "an actor is work, even without resources"
    assert result["looks idle"] is True
    assert result["empty node left after"] < 20
    assert result["actor node left after"] < 20
