"""The hourly price of a cluster after `up`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal import spec as specs
from shoal.catalog import load_price_table, offerings_for
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.core.events import PriceEstimated
from shoal.costs.estimate import PlannedNodes, estimate
from shoal.ops.preview import planned_nodes
from shoal.ops.up_plan import UpPlan, plan_up
from shoal.providers.model import Instance, State
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

TEXT = """
cluster_name: c
provider: {type: aws, region: us-west-2}
max_workers: 4
available_node_types:
  head: {node_config: {InstanceType: m5.large}}
  gpu:
    node_config: {InstanceType: g5.xlarge, InstanceMarketOptions: {MarketType: spot}}
    min_workers: 2
  odd: {node_config: {InstanceType: x99.huge}, min_workers: 0}
head_node_type: head
"""


@pytest.fixture
def spec(tmp_path: Path) -> ClusterSpec:
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    return specs.load(path).spec


def price_of(spec: ClusterSpec, observed: ObservedCluster, plan: UpPlan) -> PriceEstimated | None:
    return estimate(spec, planned_nodes(observed, plan), offerings_for(spec), "the catalog")


def catalog_price(instance_type: str, market: str) -> float:
    entry = load_price_table("aws").find(instance_type)
    assert entry is not None
    price = entry.price("us-west-2")
    value = price.spot if market == "spot" else price.on_demand
    assert value is not None
    return value


def worker(number: int, *, state: State = State.RUNNING, hourly: float | None = None) -> Instance:
    return Instance(
        id=f"i-{number}",
        cluster="c",
        name=f"worker-{number}",
        node_type="gpu",
        role="worker",
        state=state,
        address="10.0.0.1",
        created_at=number,
        market="on-demand" if hourly else "",
        price_per_hour=hourly,
    )


def test_a_new_cluster_is_priced_by_the_catalog(spec: ClusterSpec) -> None:
    priced = price_of(spec, ObservedCluster(), plan_up(spec, ObservedCluster()))
    assert priced is not None
    expected = catalog_price("m5.large", "on-demand") + 2 * catalog_price("g5.xlarge", "spot")
    assert priced.per_hour == pytest.approx(expected)
    assert priced.complete
    assert [(i.count, i.instance_type, i.market) for i in priced.items] == [
        (1, "m5.large", "on-demand"),
        (2, "g5.xlarge", "spot"),
    ]


def test_the_price_includes_volumes(spec: ClusterSpec) -> None:
    nodes = [PlannedNodes("gpu", 2)]
    offering = Offering("gpu", price_per_hour=1.0, disks="100 GiB gp3", disks_per_hour=0.01)
    priced = estimate(spec, nodes, [offering], "a list")
    assert priced.per_hour == pytest.approx(2.02)
    assert (priced.items[0].disks, priced.items[0].disks_price) == ("100 GiB gp3", 0.01)


def test_an_existing_instance_keeps_its_own_price(spec: ClusterSpec) -> None:
    priced = price_of(spec, ObservedCluster([worker(1, hourly=9.0)]), UpPlan())
    assert priced is not None
    assert priced.per_hour == 9.0


def test_an_existing_instance_keeps_its_own_instance_type(spec: ClusterSpec) -> None:
    """Even if the file now names another one, whose price must not be used for it."""
    priced = price_of(
        spec,
        ObservedCluster([replace(worker(1, hourly=9.0), instance_type="p3.2xlarge")]),
        UpPlan(),
    )
    assert priced is not None
    assert [(item.instance_type, item.price) for item in priced.items] == [("p3.2xlarge", 9.0)]
    unknown = price_of(
        spec, ObservedCluster([replace(worker(1), instance_type="z9.mega")]), UpPlan()
    )
    assert unknown is not None
    assert [(item.instance_type, item.price) for item in unknown.items] == [("z9.mega", None)]


def test_terminated_and_stopped_instances_cost_nothing(spec: ClusterSpec) -> None:
    instances = [
        worker(1),
        worker(2, state=State.STOPPED),
        worker(3, state=State.TERMINATING),
    ]
    priced = price_of(spec, ObservedCluster(instances), UpPlan(terminate=(instances[0],)))
    assert priced is not None
    assert priced.items == ()


def test_an_unknown_price_makes_the_estimate_incomplete(spec: ClusterSpec) -> None:
    odd = replace(spec.node_types["odd"], min_workers=1)
    spec = replace(spec, node_types={**spec.node_types, "odd": odd})
    priced = price_of(spec, ObservedCluster(), plan_up(spec, ObservedCluster()))
    assert priced is not None
    assert not priced.complete
    assert priced.items[-1].price is None
