"""Ray's messages, as every release since 2.52 sends them, are parsed into demand and nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.core.errors import TransientError
from shoal.ray_runtime.gcs_client import Gcs, parse
from shoal.scaling import Gang, LabelRule, Request, Shape, Strategy

pb = pytest.importorskip("ray.core.generated.autoscaler_pb2")


@pytest.fixture
def state() -> Any:
    return pb.ClusterResourceState(cluster_resource_state_version=7)


def add_request(rows: Any, resources: dict[str, float], count: int = 1) -> Any:
    row = rows.add(count=count)
    row.request.resources_bundle.update(resources)
    return row.request


def test_equal_requests_are_one_row_and_an_empty_selector_is_ignored(state: Any) -> None:
    for count in (2, 3):
        request = add_request(state.pending_resource_requests, {"CPU": 1.0}, count)
        request.label_selectors.add()
    reading = parse(state)
    assert reading.demand.requests == (Request(Shape.of({"CPU": 1.0}), 5),)
    assert reading.version == 7


def test_label_selectors_become_label_rules(state: Any) -> None:
    request = add_request(state.pending_resource_requests, {"CPU": 1.0})
    selector = request.label_selectors.add()
    selector.label_constraints.add(label_key="zone", operator=1, label_values=["b", "a"])
    selector.label_constraints.add(label_key="market", operator=2, label_values=["spot"])
    rules = (LabelRule("zone", ("a", "b")), LabelRule("market", ("spot",), negated=True))
    assert parse(state).demand.requests == (Request(Shape.of({"CPU": 1.0}, [rules])),)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_placement_group_is_a_gang_with_its_strategy(state: Any, strategy: Strategy) -> None:
    for _ in range(2):
        group = state.pending_gang_resource_requests.add(details=f"ab12:{strategy}|PENDING")
        for _ in range(3):
            group.requests.add().resources_bundle.update({"GPU": 1.0})
    assert parse(state).demand.gangs == (Gang((Shape.of({"GPU": 1.0}),) * 3, strategy, 2),)


def test_the_bundles_of_a_placement_group_keep_their_label_selectors(state: Any) -> None:
    """Ray lists the bundles twice, and only once with their selectors."""
    group = state.pending_gang_resource_requests.add(details="ab12:STRICT_SPREAD|PENDING")
    alternative = group.bundle_selectors.add()
    for market in ("on-demand", "spot"):
        group.requests.add().resources_bundle.update({"CPU": 1.0})
        bundle = alternative.resource_requests.add()
        bundle.resources_bundle.update({"CPU": 1.0})
        selector = bundle.label_selectors.add()
        selector.label_constraints.add(label_key="market", operator=1, label_values=[market])
    bundles = [
        Shape.of({"CPU": 1.0}, [[LabelRule("market", (market,))]])
        for market in ("on-demand", "spot")
    ]
    (gang,) = parse(state).demand.gangs
    assert gang == Gang(tuple(bundles), Strategy.STRICT_SPREAD)


def test_label_selectors_stay_in_the_order_of_the_fallback_strategy(state: Any) -> None:
    request = add_request(state.pending_resource_requests, {"CPU": 1.0})
    markets = ["spot", "on-demand", "reserved"]
    for market in markets:
        selector = request.label_selectors.add()
        selector.label_constraints.add(label_key="market", operator=1, label_values=[market])
    ((shape,),) = [[r.shape for r in parse(state).demand.requests]]
    assert [rule.values for (rule,) in shape.selectors] == [
        ("spot",),
        ("on-demand",),
        ("reserved",),
    ]


def test_tasks_inside_a_placement_group_are_not_counted_again(state: Any) -> None:
    add_request(
        state.pending_resource_requests, {"CPU_group_0_ab12": 1.0, "bundle_group_ab12": 0.001}
    )
    assert parse(state).demand.requests == ()


def test_request_resources_is_a_floor(state: Any) -> None:
    add_request(state.cluster_resource_constraints.add().resource_requests, {"CPU": 4.0}, 2)
    demand = parse(state).demand
    assert demand.floors == (Request(Shape.of({"CPU": 4.0}), 2),)
    assert demand.requests == ()


def test_dead_nodes_are_left_out_and_live_ones_keyed_by_instance(state: Any) -> None:
    state.node_states.add(node_id=b"\x01", instance_id="i-1", status=pb.DEAD)
    state.node_states.add(node_id=b"\x02", instance_id="i-2", status=pb.IDLE, idle_duration_ms=1500)
    (node,) = parse(state).nodes.values()
    assert (node.instance_id, node.ray_id, node.status, node.idle_s) == ("i-2", "02", "idle", 1.5)


def test_gcs_that_does_not_run_raises_at_once() -> None:
    with pytest.raises(TransientError, match="does not answer"):
        Gcs("127.0.0.1:1").read()


@pytest.mark.parametrize(
    ("statuses", "is_used"),
    [((), False), (("SUCCEEDED", "FAILED", "STOPPED"), False), (("FAILED", "RUNNING"), True),
     (("PENDING",), True)],
)  # fmt: skip
def test_a_submitted_job_counts_as_use_before_its_command_connects_to_ray(
    statuses: tuple[str, ...], is_used: bool
) -> None:
    class Client:
        def internal_kv_keys(self, prefix: bytes, namespace: bytes, timeout: float) -> list[bytes]:
            return [prefix + status.encode() for status in statuses]

        def internal_kv_get(self, key: bytes, namespace: bytes, timeout: float) -> bytes:
            return json.dumps({"status": key.rpartition(b"_")[2].decode()}).encode()

        def get_all_job_info(self, **_: object) -> dict[str, Any]:
            return {}

    gcs = Gcs("127.0.0.1:1")
    gcs._client = Client()
    assert gcs.has_drivers() == is_used
