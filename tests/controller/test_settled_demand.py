"""Work that has just started and is still reported as pending launches nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.controller.settled_demand import SETTLE_S, SettledDemand
from shoal.ray_runtime.gcs_client import GcsReading
from shoal.ray_runtime.nodes import RayNode
from shoal.scaling import Demand, Gang, Request, Shape, Strategy
from tests.controller.fake_cluster import FakeCluster, Harness
from tests.specs import cluster

ONE_CPU = Shape.of({"CPU": 1})


def ray_node(id: str, free: float, total: float = 4.0) -> RayNode:
    return RayNode(id, id, "10.0.0.2", "worker", "running", 0.0, {"CPU": total}, {"CPU": free})


def reading(pending: Demand, *nodes: RayNode) -> GcsReading:
    return GcsReading({node.instance_id: node for node in nodes}, pending)


def tasks(count: int) -> Demand:
    return Demand((Request(ONE_CPU, count),)) if count else Demand()


async def test_a_task_that_has_just_taken_a_node_launches_no_second_one(tmp_path: Path) -> None:
    harness = Harness(FakeCluster(), tmp_path, cluster(max_workers=5))
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(3)
    (worker,) = harness.cluster.workers
    harness.cluster.busy.add(worker)  # the node is taken, and its task is still pending
    await harness.iterate()
    assert harness.cluster.workers == [worker]
    harness.cluster.set_pending_tasks(0)
    await harness.iterate(3)
    assert harness.cluster.workers == [worker]


async def test_a_task_that_stays_pending_gets_its_node(tmp_path: Path) -> None:
    harness = Harness(FakeCluster(), tmp_path, cluster(max_workers=5))
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(3)
    harness.cluster.busy.update(harness.cluster.workers)
    await harness.iterate(4)
    assert len(harness.cluster.workers) == 2


def test_only_as_much_as_was_taken_is_left_out_and_only_for_a_moment() -> None:
    settled = SettledDemand()
    assert settled.of(reading(tasks(3), ray_node("a", 4)), 0.0) == tasks(3)
    taken = reading(tasks(3), ray_node("a", 2))
    assert settled.of(taken, 1.0) == tasks(1)
    assert settled.of(taken, 1.5) == tasks(1)
    assert settled.of(taken, 1.0 + SETTLE_S) == tasks(3)


def test_tasks_that_left_the_pending_work_explain_what_was_taken() -> None:
    settled = SettledDemand()
    settled.of(reading(tasks(5), ray_node("a", 4)), 0.0)
    assert settled.of(reading(tasks(3), ray_node("a", 2)), 1.0) == tasks(3)


def test_the_first_reading_is_taken_as_it_is() -> None:
    assert SettledDemand().of(reading(tasks(2), ray_node("a", 0)), 0.0) == tasks(2)


def test_a_node_that_joins_and_is_taken_at_once_counts_as_taken() -> None:
    settled = SettledDemand()
    settled.of(reading(tasks(1)), 0.0)
    assert settled.of(reading(tasks(1), ray_node("a", 3)), 1.0) == Demand()


def test_a_gang_is_left_out_whole_or_not_at_all() -> None:
    gang = Gang((ONE_CPU, ONE_CPU), Strategy.STRICT_SPREAD)
    pending = Demand(gangs=(gang,))
    for free, left in ((3.0, pending), (2.0, Demand())):
        settled = SettledDemand()
        settled.of(reading(pending, ray_node("a", 4)), 0.0)
        assert settled.of(reading(pending, replace(ray_node("a", free))), 1.0) == left
