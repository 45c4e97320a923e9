"""The controller on real Ray: one embedded cluster, from nothing to nothing, as a person sees it.

The tests share the cluster and run in order; each leaves it at rest or says what it leaves.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

from tests.cli.conftest import home_for_a_while
from tests.controller.elastic import Elastic, until

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

FLOOR = """
import ray, sys
from ray.autoscaler.sdk import request_resources
ray.init(log_to_driver=False, logging_level="ERROR")
request_resources(bundles=[{"CPU": 1}] * int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with home_for_a_while() as home:
        programs = {"tasks": TASKS, "gangs": GANGS, "floor": FLOOR}
        elastic = Elastic(home, tmp_path_factory.mktemp("elastic"), programs)
        elastic.up()
        yield elastic


def test_a_cluster_of_a_head_alone_grows_for_work_and_the_work_is_done(elastic: Elastic) -> None:
    program = elastic.start("tasks", 3, 2)
    until(lambda: bool(elastic.workers("starting")))
    pending = elastic.home.shoal("why", "--pending").stdout
    assert re.search(r"\d x \{CPU: 1\}: coming: .*worker-1 \(small, starting\)", pending)
    status = elastic.home.shoal("exec", "elastic", "ray status").stdout
    assert len(re.findall(r": small, starting", status)) == 3, status
    assert "done 3" in program.communicate(timeout=90)[0]
    assert {n["node_type"] for n in elastic.workers()} == {"small"}


def test_nodes_that_nobody_uses_go_and_why_tells(elastic: Elastic) -> None:
    until(elastic.at_rest)
    told = elastic.home.shoal("why", "worker-1").stdout
    assert "it exists because: 3 of 3 pending (3 x {CPU: 1}) have no room" in told
    assert "it ended because: idle for" in told


def test_gangs_of_all_strategies_get_the_nodes_they_need(elastic: Elastic) -> None:
    printed = elastic.run("gangs")
    for strategy in ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"):
        assert f"placed {strategy}\n" in printed
    assert {n["node_type"] for n in elastic.workers()} == {"gpu"}
    until(elastic.at_rest)


def test_killed_in_the_middle_of_a_launch_it_is_back_and_launches_nothing_twice(
    elastic: Elastic,
) -> None:
    before = elastic.ever()
    program = elastic.start("tasks", 2, 1)
    until(lambda: bool(elastic.workers("starting")))
    victim = elastic.pid("controller")
    os.kill(victim, signal.SIGKILL)
    until(lambda: elastic.pid("controller") != victim, 5.0)
    assert "done 2" in program.communicate(timeout=90)[0]
    until(elastic.at_rest)
    assert len(elastic.ever() - before) == 2


def test_a_killed_supervisor_has_a_successor(elastic: Elastic) -> None:
    victim = elastic.pid("supervisor")
    os.kill(victim, signal.SIGKILL)
    until(lambda: elastic.pid("supervisor") != victim, 10.0)
    controller = elastic.pid("controller")
    until(lambda: elastic.state()["pid"] == elastic.pid("controller") != 0, 15.0)
    os.kill(elastic.pid("controller"), signal.SIGKILL)
    until(lambda: elastic.pid("controller") != controller, 10.0)


def test_a_floor_is_kept_until_it_is_taken_back(elastic: Elastic) -> None:
    elastic.run("floor", 1)
    until(lambda: len(elastic.workers()) == 1)
    idle = elastic.workers()[0]["since"]
    until(lambda: elastic.state()["at"] > idle + 9)
    assert len(elastic.workers()) == 1, "the floor outlives the idle timeout"
    elastic.run("floor", 0)
    until(elastic.at_rest)


def test_new_limits_reach_the_running_controller(elastic: Elastic) -> None:
    controller = elastic.pid("controller")
    done = elastic.home.shoal("up", str(elastic.yaml), "--max-workers", "1", "--no-restart")
    assert done.returncode == 0, done.stderr
    until(lambda: elastic.state()["limits"]["max_workers"] == 1, 10.0)
    assert elastic.pid("controller") == controller
    assert "done 3" in elastic.run("tasks", 3, 0.5)
    assert len(elastic.workers()) == 1


def test_down_leaves_nothing(elastic: Elastic) -> None:
    machines = elastic.home.machines()
    done = elastic.home.shoal("down", "elastic", "--yes")
    assert done.returncode == 0, done.stderr
    assert elastic.home.left_over(machines) == []
