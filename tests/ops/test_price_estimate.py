"""What a cluster will cost, told before anything is spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal import spec as specs
from shoal.catalog import offerings_for, price_table
from shoal.core.events import Priced
from shoal.ops import price_estimate as bills
from shoal.ops.up_plan import ObservedCluster, UpPlan, plan_up
from shoal.providers.model import Instance, State
from shoal.spec.cluster_spec import ClusterSpec
from tests.specs import cluster

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


def bill(spec: ClusterSpec, seen: ObservedCluster, plan: UpPlan) -> Priced | None:
    return bills.price_estimate(spec, seen, plan, offerings_for(spec), "the catalog")


def price(name: str, market: str) -> float:
    listing = price_table("aws").find(name)
    assert listing is not None
    found = listing.price("us-west-2")
    value = found.spot if market == "spot" else found.on_demand
    assert value is not None
    return value


def worker(number: int, *, state: State = State.RUNNING, paid: float | None = None) -> Instance:
    return Instance(
        id=f"i-{number}",
        cluster="c",
        name=f"worker-{number}",
        node_type="gpu",
        role="worker",
        state=state,
        address="10.0.0.1",
        created_at=number,
        market="on-demand" if paid else "",
        price_per_hour=paid,
    )


def test_a_new_cluster_costs_what_its_machines_do(spec: ClusterSpec) -> None:
    told = bill(spec, ObservedCluster(), plan_up(spec, ObservedCluster()))
    assert told is not None
    expected = price("m5.large", "on-demand") + 2 * price("g5.xlarge", "spot")
    assert told.per_hour == pytest.approx(expected)
    assert told.complete
    assert [(i.count, i.machine, i.market) for i in told.items] == [
        (1, "m5.large", "on-demand"),
        (2, "g5.xlarge", "spot"),
    ]


def test_a_machine_that_is_there_costs_what_is_paid_for_it(spec: ClusterSpec) -> None:
    told = bill(spec, ObservedCluster([worker(1, paid=9.0)]), UpPlan())
    assert told is not None
    assert told.per_hour == 9.0


def test_a_machine_that_is_there_is_called_what_it_is(spec: ClusterSpec) -> None:
    """The file has come to ask for another."""
    told = bill(
        spec, ObservedCluster([replace(worker(1, paid=9.0), machine="p3.2xlarge")]), UpPlan()
    )
    assert told is not None
    assert [(item.machine, item.price) for item in told.items] == [("p3.2xlarge", 9.0)]
    unknown = bill(spec, ObservedCluster([replace(worker(1), machine="z9.mega")]), UpPlan())
    assert unknown is not None
    assert [(item.machine, item.price) for item in unknown.items] == [("z9.mega", None)]


def test_what_is_ended_switched_off_or_gone_costs_nothing(spec: ClusterSpec) -> None:
    machines = [
        worker(1),
        worker(2, state=State.STOPPED),
        worker(3, state=State.TERMINATING),
    ]
    told = bill(spec, ObservedCluster(machines), UpPlan(terminate=(machines[0],)))
    assert told is not None
    assert told.items == ()


def test_a_price_that_is_not_known_is_said_to_be_missing(spec: ClusterSpec) -> None:
    odd = replace(spec.node_types["odd"], min_workers=1)
    spec = replace(spec, node_types={**spec.node_types, "odd": odd})
    told = bill(spec, ObservedCluster(), plan_up(spec, ObservedCluster()))
    assert told is not None
    assert not told.complete
    assert told.items[-1].price is None


def test_machines_of_ones_own_have_no_price() -> None:
    spec = cluster(min_workers=2)
    assert bill(spec, ObservedCluster(), plan_up(spec, ObservedCluster())) is None
