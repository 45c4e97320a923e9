"""The controller on real Ray, as a user sees it. The tests share one embedded cluster; each starts
with the cluster scaled down to its head and the settings of its file.
"""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import temporary_home
from tests.controller.elastic_cluster import Elastic, until

pytestmark = pytest.mark.ray

TASKS = """
import ray, sys, time
ray.init(log_to_driver=False, logging_level="ERROR")
count, seconds = int(sys.argv[1]), float(sys.argv[2])

@ray.remote(num_cpus=1)
def work():
    time.sleep(seconds)
    return ray.util.get_node_ip_address()

print("done", len(ray.get([work.remote() for _ in range(count)])))
"""

GANGS = """
import ray
from ray.util.placement_group import placement_group, remove_placement_group
ray.init(log_to_driver=False, logging_level="ERROR")
for strategy in ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"):
    bundles = [{"GPU": 1}] * (1 if strategy == "STRICT_PACK" else 2)
    group = placement_group(bundles, strategy=strategy)
    ray.get(group.ready(), timeout=90)
    print("placed", strategy)
    remove_placement_group(group)
"""

ACTORS = """
import os, ray, sys
from shoal.ray_runtime.gcs_client import Gcs
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
class Actor:
    def where(self):
        return ray.util.get_node_ip_address()

# All at once, so that none gives up its node before the others have one.
actors = [Actor.options(max_restarts=n).remote() for n in range(int(sys.argv[1]))]
print("on", len(set(ray.get([actor.where.remote() for actor in actors]))), "nodes")
print("nodes with actors:", len(Gcs(os.environ["RAY_ADDRESS"]).nodes_with_actors()))
"""

# A driver that is connected, and requests nothing or what no node has.
SLEEPER = """
import pathlib, ray, sys, time
ray.init(log_to_driver=False, logging_level="ERROR")
task = ray.remote(num_cpus=0)(lambda: None)
refs = [task.options(resources={name: 1}).remote() for name in sys.argv[3:]]
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.1)
"""

FLOOR = """
import ray, sys
from ray.autoscaler.sdk import request_resources
ray.init(log_to_driver=False, logging_level="ERROR")
request_resources(bundles=[{"CPU": 1}] * int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with temporary_home() as home:
        programs = {
            "tasks": TASKS, "gangs": GANGS, "floor": FLOOR, "actors": ACTORS, "sleeper": SLEEPER,
        }  # fmt: skip
        yield Elastic(home, tmp_path_factory.mktemp("elastic"), programs)


@pytest.fixture
def elastic(shared_cluster: Elastic) -> Elastic:
    shared_cluster.reset()
    return shared_cluster


def test_a_cluster_of_only_a_head_scales_up_for_tasks_and_they_finish(elastic: Elastic) -> None:
    before = elastic.ever()
    program = elastic.start("tasks", 3, 2)
    until(lambda: bool(elastic.workers("starting")))
    pending = elastic.home.shoal("why", "--pending").stdout
    assert re.search(r"\d x \{CPU: 1\}: coming: .*worker-\d+ \(small, starting\)", pending)
    assert "done 3" in program.communicate(timeout=150)[0]
    assert elastic.types_since(before) == {"small"}


@pytest.mark.long
def test_ray_status_agrees_with_shoal_status(elastic: Elastic) -> None:
    elastic.run("floor", 2)  # so that nothing changes between the two commands
    until(lambda: len(elastic.workers()) == 2 and len(elastic.state()["nodes"]) == 3)
    ray_status = elastic.home.shoal("exec", "elastic", "ray status").stdout
    shoal_status = elastic.home.json("status")
    active = ray_status.partition("Active:")[2].partition("Idle:")[0]
    idle = ray_status.partition("Idle:")[2].partition("Pending:")[0]
    counted = Counter[str]()
    for count, node_type in re.findall(r"^ (\d+) (\w+)$", active + idle, re.MULTILINE):
        counted[node_type] += int(count)
    assert counted == Counter(
        n["node_type"] for n in shoal_status["nodes"] if n["phase"] == "ready"
    )
    assert counted == {"boss": 1, "small": 2}
    assert "(no pending nodes)" in ray_status
    elastic.run("floor", 0)


@pytest.mark.long
def test_its_metrics_can_be_scraped(elastic: Elastic) -> None:
    def metrics() -> str:
        with urllib.request.urlopen(f"http://{elastic.state()['metrics']}/metrics") as page:
            return str(page.read(), "utf-8")

    elastic.run("floor", 1)
    launches = re.compile(r'shoal_decisions_total\{action="launch"\} [1-9]')
    until(lambda: launches.search(metrics()) is not None, 60.0)
    text = metrics()
    assert 'shoal_nodes{node_type="boss",phase="ready"} 1.0' in text
    for name in ("shoal_waiting", "shoal_price_per_hour", "shoal_loop_seconds_bucket"):
        assert name in text
    elastic.run("floor", 0)


def test_idle_nodes_are_terminated_and_why_explains_it(elastic: Elastic) -> None:
    assert "done 1" in elastic.run("tasks", 1, 0.1)
    until(elastic.has_scaled_down)
    explanation = elastic.home.shoal("why", "worker-1").stdout
    because = r"launched because: \d pending tasks?/actors? of \{CPU: 1\} do(es)? not fit"
    assert re.search(because, explanation), explanation
    assert "terminated because: idle for" in explanation


@pytest.mark.long
def test_gangs_of_all_strategies_get_the_nodes_they_need(elastic: Elastic) -> None:
    before = elastic.ever()
    printed = elastic.run("gangs")
    for strategy in ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"):
        assert f"placed {strategy}\n" in printed
    assert elastic.types_since(before) == {"gpu"}
    until(elastic.has_scaled_down)


@pytest.mark.long
def test_pending_and_failed_nodes_are_in_ray_status(elastic: Elastic, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    program = elastic.start("sleeper", tmp_path / "connected", enough, "broken", "slow")
    until(lambda: any(d["action"] == "failed" for d in elastic.state()["decisions"]))
    until(lambda: bool(elastic.workers("preparing")))
    status = elastic.home.shoal("exec", "elastic", "ray status").stdout
    pending, _, failures = status.partition("Pending:")[2].partition("Recent failures:")
    assert ": slow, preparing" in pending, status
    assert "broken" in failures.partition("Resources")[0], status
    pending = elastic.home.shoal("why", "--pending").stdout
    assert re.search(r"1 x \{broken: 1\}: .*setup of broken .*failed", pending), pending
    logs = [log.read_text() for log in (elastic.control / "logs").iterdir()]
    assert logs and all("no luck\n" in log for log in logs)
    enough.touch()
    elastic.gate.touch()
    assert program.wait(timeout=90) == 0
    until(elastic.has_scaled_down)


def test_killed_during_a_launch_it_is_restarted_and_launches_nothing_twice(
    elastic: Elastic,
) -> None:
    before, began = elastic.ever(), time.time()
    program = elastic.start("actors", 2)
    until(lambda: bool(elastic.workers("starting")))
    victim, killed = elastic.pid("controller"), time.time()
    os.kill(victim, signal.SIGKILL)
    until(lambda: elastic.pid("controller") != victim, 5.0)
    until(lambda: elastic.state()["pid"] != victim, 60.0)
    assert elastic.launched_nodes(since=killed) == 0, "it knows which nodes are pending"
    printed = program.communicate(timeout=150)[0]
    assert "on 2 nodes" in printed
    assert "nodes with actors: 2\n" in printed, "including the one that Ray would restart elsewhere"
    until(elastic.has_scaled_down)
    assert len(elastic.ever() - before) == elastic.launched_nodes(since=began)


def test_a_killed_supervisor_is_restarted(elastic: Elastic) -> None:
    victim = elastic.pid("supervisor")
    os.kill(victim, signal.SIGKILL)
    until(lambda: elastic.pid("supervisor") != victim, 60.0)
    controller = elastic.pid("controller")
    until(lambda: elastic.state()["pid"] == elastic.pid("controller") != 0, 60.0)
    os.kill(elastic.pid("controller"), signal.SIGKILL)
    until(lambda: elastic.pid("controller") != controller, 60.0)


@pytest.mark.long
def test_a_request_resources_floor_is_kept_until_it_is_removed(elastic: Elastic) -> None:
    elastic.run("floor", 1)
    until(lambda: len(elastic.workers()) == 1)
    idle = elastic.workers()[0]["since"]
    until(lambda: elastic.state()["at"] > idle + 9)
    assert len(elastic.workers()) == 1, "the floor outlives the idle timeout"
    elastic.run("floor", 0)
    until(elastic.has_scaled_down)


@pytest.mark.long
def test_new_limits_reach_the_running_controller(elastic: Elastic) -> None:
    controller = elastic.pid("controller")
    done = elastic.home.shoal("up", str(elastic.yaml), "--max-workers", "1", "--no-restart")
    assert done.returncode == 0, done.stderr
    until(lambda: elastic.state()["limits"]["max_workers"] == 1, 60.0)
    assert elastic.pid("controller") == controller
    before = elastic.ever()
    assert "done 3" in elastic.run("tasks", 3, 0.5)
    assert len(elastic.ever() - before) == 1


def test_autostop_shuts_down_an_unused_cluster(elastic: Elastic, tmp_path: Path) -> None:
    connected, enough = tmp_path / "connected", tmp_path / "enough"
    program = elastic.start("sleeper", connected, enough)
    until(connected.exists)
    until(lambda: len(elastic.workers()) == 0, 90)
    done = elastic.home.shoal("up", str(elastic.yaml), "--no-restart", "--autostop", "3s")
    assert done.returncode == 0, done.stderr
    until(lambda: elastic.state()["limits"]["autostop_s"] == 3, 60.0)
    seen = elastic.state()["at"]
    until(lambda: elastic.state()["at"] > seen + 9)  # three times the idle limit
    instance_ids = elastic.home.instance_ids()
    assert len(instance_ids) == 1, "a driver is connected, and a user session runs"
    enough.touch()
    assert program.wait(timeout=90) == 0
    until(lambda: elastic.home.leftovers(instance_ids) == [], 90)
    status = elastic.home.shoal("status", "elastic")
    assert status.returncode == 3
    assert re.search(r"is not up: autostop ended it at [\d:]+, after 3s without use", status.stdout)
