"""What is launched for which demand."""

from __future__ import annotations

from dataclasses import replace

from shoal.core.node_phase import Phase
from shoal.scaling import Cause, History, LaunchFailure, NodeView, Offering, Strategy, plan
from shoal.scaling.demand import LabelRule, Request, Shape
from tests.scaling.clusters import (
    C4,
    C16,
    G1,
    G8,
    HEAD,
    OFFERINGS,
    carried_out,
    counts,
    demand,
    gang,
    launching,
    node_type,
    ready,
    spec,
    tasks,
)

CLUSTER = spec(C4, C16, G1, G8)
NO_HISTORY = History()


def test_without_demand_nothing_is_launched() -> None:
    assert plan(CLUSTER, [HEAD], demand(), NO_HISTORY, 0.0, OFFERINGS).is_empty


def test_one_gpu_task_among_many_cpu_tasks_launches_one_small_gpu_node() -> None:
    """Ray's scheduler launches a node with eight GPUs here and leaves seven idle."""
    pending = demand(tasks(100, CPU=1), tasks(1, CPU=1, GPU=1))
    result = plan(CLUSTER, [HEAD], pending, NO_HISTORY, 0.0, OFFERINGS)
    assert counts(result) == {"c16": 6, "g1": 1}  # 6 x 16 + 8 = 104 CPUs


def test_cpu_work_launches_no_gpu_nodes_when_prices_are_unknown() -> None:
    result = plan(CLUSTER, [HEAD], demand(tasks(500, CPU=1)), NO_HISTORY, 0.0)
    assert set(counts(result)) <= {"c4", "c16"}


def test_min_workers_are_launched_at_once_regardless_of_upscaling_speed() -> None:
    """Ray launches one per loop until the first have joined."""
    slow = spec(node_type("c4", {"CPU": 4}, min_workers=100), upscaling_speed=1.0)
    result = plan(slow, [HEAD], demand(), NO_HISTORY, 0.0)
    assert counts(result) == {"c4": 100}
    assert {launch.reason.cause for launch in result.launches} == {Cause.MIN_WORKERS}


def test_a_type_without_capacity_is_replaced_by_another_during_its_backoff() -> None:
    failed = NO_HISTORY.with_failure(LaunchFailure("c4", at=100.0))
    pending = demand(tasks(12, CPU=1))
    assert counts(plan(CLUSTER, [HEAD], pending, failed, 110.0, OFFERINGS)) == {"c16": 1}
    assert counts(plan(CLUSTER, [HEAD], pending, failed, 161.0, OFFERINGS)) == {"c4": 3}


def test_the_backoff_of_a_failing_type_doubles_up_to_a_bound() -> None:
    cluster = spec(C4)
    history = NO_HISTORY
    pauses = []
    now = 0.0
    for _ in range(8):
        history = history.with_failure(LaunchFailure("c4", at=now))
        retried_at = now
        while not plan(cluster, [HEAD], demand(tasks(1, CPU=1)), history, retried_at).launches:
            retried_at += 10.0
        pauses.append(retried_at - now)
        now = retried_at
    assert pauses[:4] == [60.0, 120.0, 240.0, 480.0]
    assert max(pauses) == 900.0


def test_a_success_resets_the_backoff() -> None:
    history = NO_HISTORY
    for at in (0.0, 1.0, 2.0):
        history = history.with_failure(LaunchFailure("c4", at=at))
    history = history.with_success("c4", "on-demand", "").with_failure(LaunchFailure("c4", at=3.0))
    assert plan(spec(C4), [HEAD], demand(tasks(1, CPU=1)), history, 64.0).launches


def test_waiting_for_capacity_is_explained_with_the_time_of_the_next_attempt() -> None:
    history = NO_HISTORY.with_failure(LaunchFailure("c4", at=100.0, zone="b", market="spot"))
    offerings = [Offering("c4", "spot", "b", 0.1)]
    result = plan(spec(C4), [HEAD], demand(tasks(1, CPU=1)), history, 130.0, offerings)
    (unmet,) = result.unmet
    assert unmet.reason.cause is Cause.CAPACITY
    assert "c4 (spot in b)" in unmet.reason.text
    assert unmet.reason.numbers["retry_in_s"] == 30.0


def test_the_cheapest_spot_zone_is_used_and_on_demand_when_spot_has_no_capacity() -> None:
    offerings = [Offering("c4", "on-demand", "a", 0.20), Offering("c4", "spot", "a", 0.09),
              Offering("c4", "spot", "b", 0.07)]  # fmt: skip
    pending = demand(tasks(4, CPU=1))
    (first,) = plan(spec(C4), [HEAD], pending, NO_HISTORY, 0.0, offerings).launches
    assert (first.market, first.zone, first.price_per_hour) == ("spot", "b", 0.07)
    history = NO_HISTORY.with_failure(LaunchFailure("c4", 0.0, market="spot", zone="b"))
    history = history.with_failure(LaunchFailure("c4", 0.0, market="spot", zone="a"))
    (second,) = plan(spec(C4), [HEAD], pending, history, 1.0, offerings).launches
    assert (second.market, second.zone) == ("on-demand", "a")


def test_free_capacity_is_used_before_anything_is_launched() -> None:
    nodes = [HEAD, *(ready(f"n{i}", C4, {"CPU": 1}) for i in range(300))]
    result = plan(CLUSTER, nodes, demand(tasks(300, CPU=1)), NO_HISTORY, 0.0, OFFERINGS)
    assert not result.launches
    assert not result.unmet


def test_launching_nodes_are_counted_once() -> None:
    phases = (Phase.REQUESTED, Phase.BOOTING, Phase.REACHABLE, Phase.PREPARING, Phase.STARTING)
    nodes = [HEAD, *(launching(str(phase), C4, phase) for phase in phases)]
    assert not plan(CLUSTER, nodes, demand(tasks(20, CPU=1)), NO_HISTORY, 0.0, OFFERINGS).launches
    assert counts(plan(CLUSTER, nodes, demand(tasks(24, CPU=1)), NO_HISTORY, 0.0, OFFERINGS)) == {
        "c4": 1
    }


def test_draining_nodes_hold_no_work_but_count_against_the_limit() -> None:
    limited = spec(C4, max_workers=1)
    leaving = NodeView("n0", "c4", Phase.DRAINING, total={"CPU": 4}, available={"CPU": 4})
    result = plan(limited, [HEAD, leaving], demand(tasks(1, CPU=1)), NO_HISTORY, 0.0)
    assert not result.launches
    assert result.unmet[0].reason.cause is Cause.LIMIT
    gone = NodeView("n0", "c4", Phase.TERMINATING)
    assert counts(plan(limited, [HEAD, gone], demand(tasks(1, CPU=1)), NO_HISTORY, 0.0)) == {
        "c4": 1
    }


def test_the_head_has_capacity_too() -> None:
    head = NodeView("h", "head", Phase.READY, is_head=True, total={"CPU": 8}, available={"CPU": 8})
    assert plan(CLUSTER, [head], demand(tasks(8, CPU=1)), NO_HISTORY, 0.0, OFFERINGS).is_empty


def test_fractional_gpus_share_a_node() -> None:
    result = plan(CLUSTER, [HEAD], demand(tasks(4, CPU=1, GPU=0.25)), NO_HISTORY, 0.0, OFFERINGS)
    assert counts(result) == {"g1": 1}


def test_a_label_selector_is_met_by_an_offering_with_the_label() -> None:
    offerings = [Offering("c4", "on-demand", "a", 0.1, labels={"zone": "a"}),
              Offering("c4", "on-demand", "b", 0.3, labels={"zone": "b"})]  # fmt: skip
    shape = Shape.of({"CPU": 1}, [[LabelRule("zone", ("b",))]])
    first = plan(spec(C4), [HEAD], demand(Request(shape, 4)), NO_HISTORY, 0.0, offerings)
    assert [(x.zone, x.count) for x in first.launches] == [("b", 1)]
    again = plan(
        spec(C4), carried_out(first, [HEAD]), demand(Request(shape, 4)), NO_HISTORY, 0.0, offerings
    )
    assert again.is_empty


def test_a_negated_selector_avoids_the_label() -> None:
    arm = node_type("arm", {"CPU": 64}, labels={"arch": "arm"})
    x86 = node_type("x86", {"CPU": 4}, labels={"arch": "x86"})
    shape = Shape.of({"CPU": 1}, [[LabelRule("arch", ("arm",), negated=True)]])
    assert counts(plan(spec(arm, x86), [HEAD], demand(Request(shape, 8)), NO_HISTORY, 0.0)) == {
        "x86": 2
    }


def test_any_alternative_of_a_selector_suffices() -> None:
    shape = Shape.of({"CPU": 1}, [[LabelRule("a", ("1",))], [LabelRule("b", ("1",))]])
    with_b = node_type("b", {"CPU": 4}, labels={"b": "1"})
    assert counts(plan(spec(C4, with_b), [HEAD], demand(Request(shape, 1)), NO_HISTORY, 0.0)) == {
        "b": 1
    }


def test_a_strict_pack_gang_gets_one_node_for_all_bundles() -> None:
    pending = demand(gangs=[gang(Strategy.STRICT_PACK, *[{"CPU": 1, "GPU": 1}] * 8)])
    assert counts(plan(CLUSTER, [HEAD], pending, NO_HISTORY, 0.0, OFFERINGS)) == {"g8": 1}


def test_a_strict_spread_gang_gets_a_node_for_each_bundle() -> None:
    pending = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"CPU": 1}] * 5)])
    nodes = [HEAD, ready("n0", C4, {"CPU": 4})]
    assert counts(plan(CLUSTER, nodes, pending, NO_HISTORY, 0.0, OFFERINGS)) == {"c4": 4}


def test_strict_spread_gangs_share_nodes_with_each_other() -> None:
    pending = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"CPU": 1}] * 4, count=4)])
    result = plan(CLUSTER, [HEAD], pending, NO_HISTORY, 0.0, OFFERINGS)
    assert sum(counts(result).values()) == 4


def test_pack_and_spread_gangs_cost_no_more_than_tasks() -> None:
    for strategy in (Strategy.PACK, Strategy.SPREAD):
        pending = demand(gangs=[gang(strategy, *[{"CPU": 1}] * 8)])
        assert counts(plan(CLUSTER, [HEAD], pending, NO_HISTORY, 0.0, OFFERINGS)) == {"c4": 2}


def test_a_gang_that_cannot_be_whole_launches_nothing() -> None:
    limited = spec(node_type("c4", {"CPU": 4}, max_workers=2))
    for strategy in (Strategy.STRICT_SPREAD, Strategy.PACK):
        pending = demand(gangs=[gang(strategy, *[{"CPU": 4}] * 3)])
        result = plan(limited, [HEAD], pending, NO_HISTORY, 0.0)
        assert not result.launches
        (unmet,) = result.unmet
        assert unmet.count == 1
        assert unmet.reason.cause is Cause.LIMIT


def test_as_many_whole_gangs_start_as_the_limit_allows() -> None:
    limited = spec(node_type("c4", {"CPU": 4}, max_workers=7))
    pending = demand(gangs=[gang(Strategy.PACK, *[{"CPU": 4}] * 3, count=5)])
    result = plan(limited, [HEAD], pending, NO_HISTORY, 0.0)
    assert counts(result) == {"c4": 6}
    assert [(u.count, u.reason.cause) for u in result.unmet] == [(3, Cause.LIMIT)]


def test_gangs_and_floors_are_not_throttled_by_upscaling_speed() -> None:
    slow = spec(C4, upscaling_speed=0.1)
    gangs = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"CPU": 4}] * 50)])
    assert counts(plan(slow, [HEAD], gangs, NO_HISTORY, 0.0)) == {"c4": 50}
    floors = demand(floors=[tasks(200, CPU=1)])
    assert counts(plan(slow, [HEAD], floors, NO_HISTORY, 0.0)) == {"c4": 50}


def test_launches_for_tasks_are_throttled_by_upscaling_speed() -> None:
    slow = spec(C4, upscaling_speed=1.0)
    pending = demand(tasks(1000, CPU=1))
    first = plan(slow, [HEAD], pending, NO_HISTORY, 0.0)
    assert counts(first) == {"c4": 5}
    held = next(u for u in first.unmet if u.reason.cause is Cause.SPEED)
    assert held.count == 245
    waiting = carried_out(first, [HEAD])
    assert not plan(slow, waiting, pending, NO_HISTORY, 1.0).launches
    up = [HEAD, *(ready(f"n{i}", C4) for i in range(30))]
    assert counts(plan(slow, up, pending, NO_HISTORY, 2.0)) == {"c4": 31}


def test_launching_min_workers_do_not_count_against_upscaling_speed() -> None:
    slow = spec(node_type("c4", {"CPU": 4}, min_workers=20), upscaling_speed=1.0)
    nodes = carried_out(plan(slow, [HEAD], demand(), NO_HISTORY, 0.0), [HEAD])
    assert counts(plan(slow, nodes, demand(tasks(1000, CPU=1)), NO_HISTORY, 0.0)) == {"c4": 5}


def test_a_floor_counts_total_capacity_not_free_capacity() -> None:
    busy = [HEAD, *(ready(f"n{i}", C4) for i in range(5))]
    assert plan(spec(C4), busy, demand(floors=[tasks(20, CPU=1)]), NO_HISTORY, 0.0).is_empty
    more = plan(spec(C4), busy, demand(floors=[tasks(24, CPU=1)]), NO_HISTORY, 0.0)
    assert counts(more) == {"c4": 1}
    assert more.launches[0].reason.cause is Cause.FLOOR


def test_a_floor_and_the_tasks_it_was_meant_for_are_not_launched_for_twice() -> None:
    pending = demand(tasks(20, CPU=1), floors=[tasks(20, CPU=1)])
    assert counts(plan(spec(C4), [HEAD], pending, NO_HISTORY, 0.0)) == {"c4": 5}


def test_a_type_at_its_limit_is_complemented_by_another() -> None:
    limited = spec(node_type("c4", {"CPU": 4}, max_workers=2), C16)
    result = plan(limited, [HEAD], demand(tasks(24, CPU=1)), NO_HISTORY, 0.0, OFFERINGS)
    assert counts(result) == {"c4": 2, "c16": 1}


def test_the_cluster_limit_makes_larger_nodes_preferable() -> None:
    result = plan(
        spec(C4, C16, max_workers=2), [HEAD], demand(tasks(32, CPU=1)), NO_HISTORY, 0.0, OFFERINGS
    )
    assert counts(result) == {"c16": 2}
    assert not result.unmet


def test_priority_goes_before_price_among_suitable_types() -> None:
    dear = node_type("dear", {"CPU": 4}, priority=10, max_workers=2)
    offerings = [Offering("dear", price_per_hour=9.0), Offering("c4", price_per_hour=0.2)]
    result = plan(spec(dear, C4), [HEAD], demand(tasks(16, CPU=1)), NO_HISTORY, 0.0, offerings)
    assert counts(result) == {"dear": 2, "c4": 2}


def test_priority_never_sends_cpu_work_to_gpu_nodes() -> None:
    gpu = node_type("gpu", {"CPU": 16, "GPU": 1}, priority=10)
    offerings = [Offering("gpu", price_per_hour=2.0), Offering("c4", price_per_hour=0.2)]
    result = plan(spec(gpu, C4), [HEAD], demand(tasks(16, CPU=1)), NO_HISTORY, 0.0, offerings)
    assert counts(result) == {"c4": 4}


def test_undeclared_resources_come_from_the_offering() -> None:
    bare = node_type("m5.xlarge", {})
    offerings = [Offering("m5.xlarge", price_per_hour=0.192, resources={"CPU": 4, "memory": 16e9})]
    assert counts(
        plan(spec(bare), [HEAD], demand(tasks(8, CPU=1)), NO_HISTORY, 0.0, offerings)
    ) == {"m5.xlarge": 2}


def test_an_infeasible_shape_is_reported_with_a_fix() -> None:
    result = plan(spec(G1), [HEAD], demand(tasks(3, CPU=1, GPU=4)), NO_HISTORY, 0.0)
    (unmet,) = result.unmet
    assert unmet.count == 3
    assert unmet.reason.cause is Cause.INFEASIBLE
    assert unmet.reason.text == "needs 4 GPU on one node; the largest node type has 1"
    assert unmet.fix == "add a node type with at least 1 CPU, 4 GPU"


def test_an_unknown_resource_is_reported() -> None:
    (unmet,) = plan(spec(C4), [HEAD], demand(tasks(1, tpu=1)), NO_HISTORY, 0.0).unmet
    assert unmet.reason.text == "needs 1 tpu on one node; no node type has any"


def test_resources_that_no_type_combines_are_reported() -> None:
    big = node_type("big", {"CPU": 64})
    (unmet,) = plan(spec(G1, big), [HEAD], demand(tasks(1, CPU=32, GPU=1)), NO_HISTORY, 0.0).unmet
    assert (
        unmet.reason.text == "no node type has all of these resources; the closest, big, lacks GPU"
    )


def test_a_selector_that_no_type_matches_is_reported() -> None:
    shape = Shape.of({"CPU": 1}, [[LabelRule("zone", ("z",))]])
    (unmet,) = plan(spec(C4), [HEAD], demand(Request(shape, 1)), NO_HISTORY, 0.0).unmet
    assert "labels" in unmet.reason.text


def test_work_that_fits_only_on_a_busy_node_waits_for_it() -> None:
    head = NodeView("h", "head", Phase.READY, is_head=True, total={"CPU": 1, "disk": 1})
    (unmet,) = plan(spec(C4), [head], demand(tasks(1, disk=1)), NO_HISTORY, 0.0).unmet
    assert unmet.reason.cause is Cause.BUSY


def test_target_utilization_keeps_headroom() -> None:
    legacy = spec(C4, target=0.8)
    busy = [ready(f"n{i}", C4) for i in range(8)]
    result = plan(legacy, [HEAD, *busy], demand(), NO_HISTORY, 0.0)
    assert counts(result) == {"c4": 1}  # 8 in use at 0.8 are 10 nodes, one of them the head
    assert result.launches[0].reason.cause is Cause.UTILIZATION


def test_initial_workers_are_launched_once() -> None:
    legacy = spec(C4, initial_workers=7)
    first = plan(legacy, [HEAD], demand(), NO_HISTORY, 0.0)
    assert counts(first) == {"c4": 7}
    second = plan(legacy, carried_out(first, [HEAD]), demand(), first.history, 5.0)
    assert second.history.initial_workers_reached
    assert not plan(legacy, [HEAD], demand(), second.history, 900.0).launches


def test_aggressive_mode_restores_initial_workers_for_any_work() -> None:
    legacy = spec(C4, initial_workers=7, mode="aggressive")
    later = History(initial_workers_reached=True)
    assert counts(plan(legacy, [HEAD], demand(tasks(1, CPU=1)), later, 0.0)) == {"c4": 7}
    assert not plan(legacy, [HEAD], demand(), later, 0.0).launches


def test_work_on_an_interrupted_node_gets_another_node() -> None:
    interrupted = replace(ready("a", C4, {"CPU": 1}), interrupted=True)
    result = plan(CLUSTER, [HEAD, interrupted], demand(), NO_HISTORY, 0.0, OFFERINGS)
    assert counts(result) == {"c4": 1}
    assert "includes the work of 1 interrupted node" in result.launches[0].reason.text
    again = plan(
        CLUSTER, carried_out(result, [HEAD, interrupted]), demand(), NO_HISTORY, 0.0, OFFERINGS
    )
    assert again.is_empty
    with_capacity = plan(
        CLUSTER,
        [HEAD, interrupted, ready("b", C4, {"CPU": 3})],
        demand(),
        NO_HISTORY,
        0.0,
        OFFERINGS,
    )
    assert with_capacity.is_empty, "it fits on another node"


def test_an_interrupted_node_has_no_capacity_and_does_not_count_against_limits() -> None:
    small = spec(node_type("c4", {"CPU": 4}, max_workers=1), max_workers=1)
    interrupted = replace(ready("a", C4, {"CPU": 4}, idle_s=5.0), interrupted=True)
    assert plan(small, [HEAD, interrupted], demand(), NO_HISTORY, 0.0, OFFERINGS).is_empty
    result = plan(small, [HEAD, interrupted], demand(tasks(1, CPU=1)), NO_HISTORY, 0.0, OFFERINGS)
    assert counts(result) == {"c4": 1}


def test_replacements_of_interrupted_nodes_are_not_throttled() -> None:
    slow = spec(C4, upscaling_speed=0.01)
    interrupted = [replace(ready(f"n{i}", C4), interrupted=True) for i in range(20)]
    result = plan(slow, [HEAD, *interrupted], demand(tasks(100, CPU=4)), NO_HISTORY, 0.0, OFFERINGS)
    assert counts(result) == {"c4": 25}, "twenty replacements and five new ones"


def test_node_markers_and_object_store_memory_are_not_work() -> None:
    total = {"CPU": 4.0, "node:10.0.0.1": 1.0, "object_store_memory": 9.0, "CPU_group_0_ab": 1.0}
    interrupted = replace(ready("a", C4), total=total, available={"CPU": 4.0}, interrupted=True)
    assert plan(CLUSTER, [HEAD, interrupted], demand(), NO_HISTORY, 0.0, OFFERINGS).is_empty


def test_max_concurrent_launches_bounds_all_launches_and_says_so() -> None:
    cluster = spec(node_type("c4", {"CPU": 4}, min_workers=3))
    cluster = replace(cluster, shoal=replace(cluster.shoal, max_concurrent_launches=4))
    pending = demand(tasks(40, CPU=1))
    first = plan(cluster, [HEAD], pending, NO_HISTORY, 0.0)
    assert counts(first) == {"c4": 4}
    (waiting,) = first.unmet
    assert waiting.count == 6
    assert "max_concurrent_launches (4)" in waiting.reason.text
    nodes = carried_out(first, [HEAD])
    assert not plan(cluster, nodes, pending, first.history, 1.0).launches
    joined = [n if n.is_head else ready(n.id, C4, free={"CPU": 4}) for n in nodes]
    assert counts(plan(cluster, joined, pending, first.history, 2.0)) == {"c4": 4}
