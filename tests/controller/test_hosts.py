"""The loop on listed hosts: it uses no more than there are, and each for what it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.controller.host_types import HostTypes, WorkerHost
from shoal.controller.lifecycle import Node
from shoal.core.node_phase import Phase
from shoal.providers.model import State
from shoal.scaling import Demand, Request, Shape
from tests.controller.fake_cluster import Harness
from tests.specs import cluster

CPU_HOST = WorkerHost("worker", {"CPU": 1.0})
GPU_HOST = WorkerHost("worker", {"CPU": 1.0, "GPU": 1.0})


def use_hosts(harness: Harness, *hosts: WorkerHost, min_workers: int = 0) -> None:
    """Give the cluster these hosts, with the ids h1, h2, ..."""
    harness.cluster.worker_hosts = {f"h{n}": host for n, host in enumerate(hosts, start=1)}
    harness.write_config(cluster(min_workers=min_workers, max_workers=len(hosts)))


def set_state(harness: Harness, id: str, state: State) -> None:
    instances = harness.cluster.instances
    instances[id] = replace(instances[id], state=state)


def demand_of(resources: dict[str, float], count: int = 1) -> Demand:
    return Demand((Request(Shape.of(resources), count),))


@pytest.mark.parametrize("is_working", [False, True], ids=["idle", "working"])
@pytest.mark.parametrize("min_workers", [0, 1, 2])
async def test_an_unreachable_host_costs_no_other_node(
    harness: Harness, min_workers: int, is_working: bool
) -> None:
    use_hosts(harness, CPU_HOST, CPU_HOST, min_workers=min_workers)
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    assert set(harness.cluster.workers) == {"h1", "h2"}
    for host in ("h1", "h2"):
        harness.cluster.set_idle(host, 10)
    harness.cluster.busy = {"h1", "h2"} if is_working else set()
    set_state(harness, "h2", State.UNREACHABLE)
    await harness.iterate(20, seconds=3)
    assert {n.phase for n in harness.state.nodes.values()} == {Phase.READY}
    set_state(harness, "h2", State.RUNNING)
    await harness.iterate(20, seconds=3)
    assert harness.reasons("drain") == harness.reasons("cancel") == []
    assert set(harness.cluster.workers) == {"h1", "h2"}


@pytest.mark.parametrize("is_working", [False, True], ids=["idle", "working"])
@pytest.mark.parametrize("min_workers", [0, 1, 2])
async def test_a_host_that_ray_has_lost_too_costs_no_other_node(
    harness: Harness, min_workers: int, is_working: bool
) -> None:
    """A link that is cut for a minute: Ray declares the node dead, and its bootstrap fails."""
    use_hosts(harness, CPU_HOST, CPU_HOST, min_workers=min_workers)
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    harness.cluster.busy = {"h1", "h2"} if is_working else set()
    harness.cluster.cut_off = {"h2"}
    await harness.iterate(10, seconds=2)
    # The work of the lost node is pending again.
    harness.cluster.set_pending_tasks(1 if is_working else 0)
    harness.cluster.ray.pop("h2")
    await harness.iterate(20, seconds=2)
    assert harness.state.nodes["h1"].phase is Phase.READY
    harness.cluster.cut_off = set()
    await harness.iterate(60)
    assert "h1" in harness.cluster.ray
    assert not [
        r for r in harness.reasons("drain") + harness.reasons("cancel") if "max_workers" in r
    ]
    if is_working or min_workers == 2:
        assert set(harness.cluster.ray) == {"head", "h1", "h2"}


async def test_the_minimum_is_kept_without_an_unreachable_node(harness: Harness) -> None:
    use_hosts(harness, CPU_HOST, CPU_HOST, min_workers=1)
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    set_state(harness, "h2", State.UNREACHABLE)
    for host in ("h1", "h2"):
        harness.cluster.set_idle(host, 1000)
    await harness.iterate(20, seconds=100)
    assert set(harness.cluster.workers) == {"h1", "h2"}
    set_state(harness, "h2", State.RUNNING)
    await harness.iterate(3)
    assert len(harness.cluster.workers) == 1


async def test_a_lowered_limit_removes_no_reachable_node_in_place_of_an_unreachable_one(
    harness: Harness,
) -> None:
    use_hosts(harness, CPU_HOST, CPU_HOST)
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    set_state(harness, "h2", State.UNREACHABLE)
    harness.cluster.set_idle("h1", 10)
    harness.write_config(cluster(max_workers=1))
    await harness.iterate(5)
    assert set(harness.cluster.workers) == {"h1", "h2"}


async def test_an_unused_unreachable_host_is_not_counted_on(harness: Harness) -> None:
    use_hosts(harness, CPU_HOST, CPU_HOST)
    harness.cluster.add_instance("h2", "worker-2", "worker")
    set_state(harness, "h2", State.UNREACHABLE)
    harness.cluster.set_pending_tasks(2)
    await harness.iterate(3)
    assert [r.count for r in harness.cluster.launch_requests] == [1]


async def test_work_gets_the_host_that_has_its_resources(harness: Harness) -> None:
    use_hosts(harness, CPU_HOST, CPU_HOST, GPU_HOST)
    harness.cluster.demand = demand_of({"GPU": 1.0})
    await harness.iterate()
    harness.cluster.demand = Demand()
    assert harness.cluster.workers == ["h3"]
    harness.cluster.demand = demand_of({"CPU": 1.0}, 3)
    harness.cluster.busy = {"h3"}
    await harness.iterate(2)
    assert set(harness.cluster.workers) == {"h1", "h2", "h3"}
    assert {n.node_type for n in harness.state.nodes.values()} == {"head", "worker"}


async def test_a_failed_launch_on_one_kind_of_host_does_not_hold_up_the_others(
    harness: Harness,
) -> None:
    use_hosts(harness, CPU_HOST, CPU_HOST, GPU_HOST)
    harness.cluster.demand = demand_of({"GPU": 1.0})
    harness.cluster.max_per_launch = 0  # another cluster has claimed it
    await harness.iterate()
    assert harness.reasons("failed")
    harness.cluster.max_per_launch = 10
    harness.cluster.demand = demand_of({"CPU": 1.0})
    await harness.iterate()
    assert harness.cluster.workers == ["h1"]


async def test_resources_that_ray_reported_of_a_host_are_remembered(harness: Harness) -> None:
    use_hosts(harness, CPU_HOST)
    harness.cluster.set_pending_tasks(1)
    await harness.iterate()
    # Its start command says so.
    has = {"CPU": 1.0, "disk": 2.0}
    harness.cluster.ray["h1"] = replace(harness.cluster.ray["h1"], total=has, available=has)
    harness.cluster.set_pending_tasks(0)
    await harness.iterate()
    harness.cluster.set_idle("h1", 1000)
    await harness.iterate(5, seconds=100)
    assert harness.cluster.workers == []
    harness.cluster.demand = demand_of({"disk": 1.0})
    await harness.iterate()
    assert harness.cluster.workers == ["h1"]


def test_a_host_that_is_being_cleaned_up_cannot_be_launched() -> None:
    types = HostTypes(cluster(max_workers=2), {"h1": CPU_HOST, "h2": CPU_HOST})
    leaving = Node("h1", "worker-1", "worker", "worker", Phase.TERMINATING, 0.0, 0.0)
    assert types.spec({}, ()).scaling.max_workers == 2
    assert types.spec({leaving.id: leaving}, ()).scaling.max_workers == 1


def test_hosts_of_about_the_same_memory_are_of_one_type_with_the_least_of_them() -> None:
    hosts = {
        f"h{n}": WorkerHost("worker", {"CPU": 4.0, "memory": memory})
        for n, memory in enumerate([64e9, 63.5e9, 512e9])
    }
    types = HostTypes(cluster(max_workers=3), hosts).spec({}, ()).node_types
    memories = {
        t.name: (t.resources["memory"], t.max_workers) for t in types.values() if t.max_workers
    }
    assert sorted(memories.values()) == [(63.5e9, 2), (512e9, 1)]


def test_a_minimum_is_shared_so_that_existing_nodes_stay() -> None:
    hosts = {"h1": CPU_HOST, "h2": CPU_HOST, "h3": GPU_HOST}
    node = Node("h3", "worker-3", "worker", "worker", Phase.READY, 0.0, 0.0)
    spec = HostTypes(cluster(min_workers=2, max_workers=3), hosts).spec({"h3": node}, ())
    minimums = {t.min_workers for t in spec.node_types.values() if t.resources.get("GPU")}
    assert minimums == {1}
    assert sum(t.min_workers for t in spec.node_types.values()) == 2


def test_a_host_of_unknown_resources_is_taken_for_one_of_the_most_frequent_kind() -> None:
    hosts = {"h1": CPU_HOST, "h2": CPU_HOST, "h3": GPU_HOST, "h4": WorkerHost("worker")}
    spec = HostTypes(cluster(max_workers=4), hosts).spec({}, ())
    assert spec.node_types["worker"].max_workers == 3
