"""Nodes whose launch settings changed in the cluster file are replaced when they are idle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import launch_hash
from tests.controller.fake_cluster import FakeCluster, Harness
from tests.specs import cluster


def with_config(spec: ClusterSpec, config: dict[str, str]) -> ClusterSpec:
    worker = replace(spec.node_types["worker"], node_config=config)
    return replace(spec, node_types={**spec.node_types, "worker": worker})


async def cluster_with_two_workers(tmp_path: Path) -> Harness:
    spec = with_config(cluster(min_workers=2, max_workers=5), {"InstanceType": "m5.large"})
    harness = Harness(FakeCluster(), tmp_path, spec)
    await harness.iterate(3)
    for id in harness.cluster.workers:
        instance = harness.cluster.instances[id]
        harness.cluster.instances[id] = replace(instance, launch_hash=launch_hash(spec, "worker"))
    await harness.iterate(3)
    return harness


async def test_an_idle_outdated_node_is_replaced_and_a_busy_one_stays(tmp_path: Path) -> None:
    harness = await cluster_with_two_workers(tmp_path)
    idle, busy = harness.cluster.workers
    harness.cluster.busy.add(busy)
    harness.cluster.set_idle(idle, 60.0)
    await harness.iterate(3, seconds=20)
    assert harness.cluster.workers == [idle, busy], "nothing has changed yet"
    harness.write_config(
        with_config(cluster(min_workers=2, max_workers=5), {"InstanceType": "m5.xlarge"})
    )
    await harness.iterate(6, seconds=20)
    assert busy in harness.cluster.workers
    assert idle not in harness.cluster.workers
    assert len(harness.cluster.workers) == 2
    assert "have changed since" in harness.reasons("drain")[-1]


async def test_a_node_without_a_recorded_hash_is_not_replaced(tmp_path: Path) -> None:
    harness = await cluster_with_two_workers(tmp_path)
    for id in harness.cluster.workers:
        instance = harness.cluster.instances[id]
        harness.cluster.instances[id] = replace(instance, launch_hash="")
        harness.cluster.set_idle(id, 60.0)
    before = harness.cluster.workers
    harness.write_config(
        with_config(cluster(min_workers=2, max_workers=5), {"InstanceType": "m5.xlarge"})
    )
    await harness.iterate(5, seconds=20)
    assert harness.cluster.workers == before
