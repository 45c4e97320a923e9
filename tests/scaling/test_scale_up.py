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
    OFFERS,
    carried_out,
    counts,
    demand,
    gang,
    node_type,
    on_the_way,
    ready,
    spec,
    tasks,
)

YARD = spec(C4, C16, G1, G8)
NONE = History()


def test_nothing_is_launched_for_nothing() -> None:
    assert plan(YARD, [HEAD], demand(), NONE, 0.0, OFFERS).is_empty


def test_one_gpu_task_among_many_cpu_tasks_buys_one_small_gpu_machine() -> None:
    """Ray's scheduler buys a machine with eight GPUs here, and leaves seven idle."""
    wanted = demand(tasks(100, CPU=1), tasks(1, CPU=1, GPU=1))
    result = plan(YARD, [HEAD], wanted, NONE, 0.0, OFFERS)
    assert counts(result) == {"c4": 24, "g1": 1}  # 24 x 4 + 8 = 104 CPUs


def test_cpu_work_does_not_buy_gpu_machines_when_no_prices_are_known() -> None:
    result = plan(YARD, [HEAD], demand(tasks(500, CPU=1)), NONE, 0.0)
    assert set(counts(result)) <= {"c4", "c16"}


def test_all_minimum_workers_are_asked_for_at_once_whatever_the_speed() -> None:
    """Ray asks for one per loop until the first have joined."""
    slow = spec(node_type("c4", {"CPU": 4}, least=100), upscaling_speed=1.0)
    result = plan(slow, [HEAD], demand(), NONE, 0.0)
    assert counts(result) == {"c4": 100}
    assert {launch.reason.cause for launch in result.launches} == {Cause.MIN_WORKERS}


def test_a_type_that_ran_out_is_left_alone_and_another_is_bought() -> None:
    failed = NONE.after(LaunchFailure("c4", at=100.0))
    wanted = demand(tasks(16, CPU=1))
    assert counts(plan(YARD, [HEAD], wanted, failed, 110.0, OFFERS)) == {"c16": 1}
    assert counts(plan(YARD, [HEAD], wanted, failed, 161.0, OFFERS)) == {"c4": 4}


def test_the_rest_of_a_failing_type_doubles_and_then_stays_bounded() -> None:
    only = spec(C4)
    history = NONE
    rests = []
    now = 0.0
    for _ in range(8):
        history = history.after(LaunchFailure("c4", at=now))
        tried_again = now
        while not plan(only, [HEAD], demand(tasks(1, CPU=1)), history, tried_again).launches:
            tried_again += 10.0
        rests.append(tried_again - now)
        now = tried_again
    assert rests[:4] == [60.0, 120.0, 240.0, 480.0]
    assert max(rests) == 900.0


def test_a_success_makes_the_next_failure_the_first_again() -> None:
    history = NONE
    for at in (0.0, 1.0, 2.0):
        history = history.after(LaunchFailure("c4", at=at))
    history = history.after_success("c4", "on-demand", "").after(LaunchFailure("c4", at=3.0))
    assert plan(spec(C4), [HEAD], demand(tasks(1, CPU=1)), history, 64.0).launches


def test_waiting_for_capacity_is_explained_with_the_time_of_the_next_try() -> None:
    history = NONE.after(LaunchFailure("c4", at=100.0, zone="b", market="spot"))
    offers = [Offering("c4", "spot", "b", 0.1)]
    result = plan(spec(C4), [HEAD], demand(tasks(1, CPU=1)), history, 130.0, offers)
    (unmet,) = result.unmet
    assert unmet.reason.cause is Cause.CAPACITY
    assert "c4 (spot in b)" in unmet.reason.text
    assert unmet.reason.numbers["retry_in_s"] == 30.0


def test_spot_is_bought_where_it_is_cheapest_and_on_demand_when_spot_ran_out() -> None:
    offers = [Offering("c4", "on-demand", "a", 0.20), Offering("c4", "spot", "a", 0.09),
              Offering("c4", "spot", "b", 0.07)]  # fmt: skip
    wanted = demand(tasks(4, CPU=1))
    (first,) = plan(spec(C4), [HEAD], wanted, NONE, 0.0, offers).launches
    assert (first.market, first.zone, first.price_per_hour) == ("spot", "b", 0.07)
    without = NONE.after(LaunchFailure("c4", 0.0, market="spot", zone="b"))
    without = without.after(LaunchFailure("c4", 0.0, market="spot", zone="a"))
    (second,) = plan(spec(C4), [HEAD], wanted, without, 1.0, offers).launches
    assert (second.market, second.zone) == ("on-demand", "a")


def test_room_on_existing_nodes_is_used_before_anything_is_bought() -> None:
    nodes = [HEAD, *(ready(f"n{i}", C4, {"CPU": 1}) for i in range(300))]
    result = plan(YARD, nodes, demand(tasks(300, CPU=1)), NONE, 0.0, OFFERS)
    assert not result.launches
    assert not result.unmet


def test_nodes_on_their_way_are_counted_once() -> None:
    phases = (Phase.REQUESTED, Phase.BOOTING, Phase.REACHABLE, Phase.PREPARING, Phase.STARTING)
    nodes = [HEAD, *(on_the_way(str(phase), C4, phase) for phase in phases)]
    assert not plan(YARD, nodes, demand(tasks(20, CPU=1)), NONE, 0.0, OFFERS).launches
    assert counts(plan(YARD, nodes, demand(tasks(24, CPU=1)), NONE, 0.0, OFFERS)) == {"c4": 1}


def test_nodes_that_are_leaving_hold_no_work_but_still_count_against_the_limit() -> None:
    few = spec(C4, max_workers=1)
    leaving = NodeView("n0", "c4", Phase.DRAINING, total={"CPU": 4}, available={"CPU": 4})
    result = plan(few, [HEAD, leaving], demand(tasks(1, CPU=1)), NONE, 0.0)
    assert not result.launches
    assert result.unmet[0].reason.cause is Cause.LIMIT
    gone = NodeView("n0", "c4", Phase.TERMINATING)
    assert counts(plan(few, [HEAD, gone], demand(tasks(1, CPU=1)), NONE, 0.0)) == {"c4": 1}


def test_the_head_is_room_too() -> None:
    head = NodeView("h", "head", Phase.READY, is_head=True, total={"CPU": 8}, available={"CPU": 8})
    assert plan(YARD, [head], demand(tasks(8, CPU=1)), NONE, 0.0, OFFERS).is_empty


def test_fractions_of_gpus_share_a_machine() -> None:
    result = plan(YARD, [HEAD], demand(tasks(4, CPU=1, GPU=0.25)), NONE, 0.0, OFFERS)
    assert counts(result) == {"g1": 1}


def test_a_label_selector_is_met_by_an_offer_that_carries_the_label() -> None:
    offers = [Offering("c4", "on-demand", "a", 0.1, labels={"zone": "a"}),
              Offering("c4", "on-demand", "b", 0.3, labels={"zone": "b"})]  # fmt: skip
    shape = Shape.of({"CPU": 1}, [[LabelRule("zone", ("b",))]])
    first = plan(spec(C4), [HEAD], demand(Request(shape, 4)), NONE, 0.0, offers)
    assert [(x.zone, x.count) for x in first.launches] == [("b", 1)]
    again = plan(spec(C4), carried_out(first, [HEAD]), demand(Request(shape, 4)), NONE, 0.0, offers)
    assert again.is_empty


def test_a_negated_selector_keeps_away_from_the_label() -> None:
    arm = node_type("arm", {"CPU": 64}, labels={"arch": "arm"})
    x86 = node_type("x86", {"CPU": 4}, labels={"arch": "x86"})
    shape = Shape.of({"CPU": 1}, [[LabelRule("arch", ("arm",), negated=True)]])
    assert counts(plan(spec(arm, x86), [HEAD], demand(Request(shape, 8)), NONE, 0.0)) == {"x86": 2}


def test_a_second_alternative_of_a_selector_will_do() -> None:
    shape = Shape.of({"CPU": 1}, [[LabelRule("a", ("1",))], [LabelRule("b", ("1",))]])
    with_b = node_type("b", {"CPU": 4}, labels={"b": "1"})
    assert counts(plan(spec(C4, with_b), [HEAD], demand(Request(shape, 1)), NONE, 0.0)) == {"b": 1}


def test_a_strictly_packed_gang_gets_one_node_for_all_of_it() -> None:
    wanted = demand(gangs=[gang(Strategy.STRICT_PACK, *[{"CPU": 1, "GPU": 1}] * 8)])
    assert counts(plan(YARD, [HEAD], wanted, NONE, 0.0, OFFERS)) == {"g8": 1}


def test_a_strictly_spread_gang_gets_a_node_for_each_bundle() -> None:
    wanted = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"CPU": 1}] * 5)])
    nodes = [HEAD, ready("n0", C4, {"CPU": 4})]
    assert counts(plan(YARD, nodes, wanted, NONE, 0.0, OFFERS)) == {"c4": 4}


def test_gangs_that_spread_strictly_share_nodes_with_each_other() -> None:
    wanted = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"CPU": 1}] * 4, count=4)])
    result = plan(YARD, [HEAD], wanted, NONE, 0.0, OFFERS)
    assert sum(counts(result).values()) == 4


def test_gangs_that_merely_prefer_to_pack_or_spread_cost_no_more_than_tasks() -> None:
    for strategy in (Strategy.PACK, Strategy.SPREAD):
        wanted = demand(gangs=[gang(strategy, *[{"CPU": 1}] * 8)])
        assert counts(plan(YARD, [HEAD], wanted, NONE, 0.0, OFFERS)) == {"c4": 2}


def test_a_gang_that_cannot_be_whole_launches_nothing() -> None:
    few = spec(node_type("c4", {"CPU": 4}, most=2))
    for strategy in (Strategy.STRICT_SPREAD, Strategy.PACK):
        wanted = demand(gangs=[gang(strategy, *[{"CPU": 4}] * 3)])
        result = plan(few, [HEAD], wanted, NONE, 0.0)
        assert not result.launches
        (unmet,) = result.unmet
        assert unmet.count == 1
        assert unmet.reason.cause is Cause.LIMIT


def test_as_many_whole_gangs_start_as_the_limit_allows() -> None:
    few = spec(node_type("c4", {"CPU": 4}, most=7))
    wanted = demand(gangs=[gang(Strategy.PACK, *[{"CPU": 4}] * 3, count=5)])
    result = plan(few, [HEAD], wanted, NONE, 0.0)
    assert counts(result) == {"c4": 6}
    assert [(u.count, u.reason.cause) for u in result.unmet] == [(3, Cause.LIMIT)]


def test_gangs_and_floors_do_not_wait_for_the_upscaling_speed() -> None:
    slow = spec(C4, upscaling_speed=0.1)
    gangs = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"CPU": 4}] * 50)])
    assert counts(plan(slow, [HEAD], gangs, NONE, 0.0)) == {"c4": 50}
    floors = demand(floors=[tasks(200, CPU=1)])
    assert counts(plan(slow, [HEAD], floors, NONE, 0.0)) == {"c4": 50}


def test_tasks_grow_the_cluster_in_chunks_of_its_size() -> None:
    slow = spec(C4, upscaling_speed=1.0)
    wanted = demand(tasks(1000, CPU=1))
    first = plan(slow, [HEAD], wanted, NONE, 0.0)
    assert counts(first) == {"c4": 5}
    held = next(u for u in first.unmet if u.reason.cause is Cause.SPEED)
    assert held.count == 245
    waiting = carried_out(first, [HEAD])
    assert not plan(slow, waiting, wanted, NONE, 1.0).launches
    up = [HEAD, *(ready(f"n{i}", C4) for i in range(30))]
    assert counts(plan(slow, up, wanted, NONE, 2.0)) == {"c4": 31}


def test_minimum_workers_on_their_way_do_not_use_up_the_chunk() -> None:
    slow = spec(node_type("c4", {"CPU": 4}, least=20), upscaling_speed=1.0)
    nodes = carried_out(plan(slow, [HEAD], demand(), NONE, 0.0), [HEAD])
    assert counts(plan(slow, nodes, demand(tasks(1000, CPU=1)), NONE, 0.0)) == {"c4": 5}


def test_a_floor_counts_what_nodes_have_not_what_is_free() -> None:
    busy = [HEAD, *(ready(f"n{i}", C4) for i in range(5))]
    assert plan(spec(C4), busy, demand(floors=[tasks(20, CPU=1)]), NONE, 0.0).is_empty
    more = plan(spec(C4), busy, demand(floors=[tasks(24, CPU=1)]), NONE, 0.0)
    assert counts(more) == {"c4": 1}
    assert more.launches[0].reason.cause is Cause.FLOOR


def test_a_floor_and_the_tasks_it_was_meant_for_are_not_bought_twice() -> None:
    wanted = demand(tasks(20, CPU=1), floors=[tasks(20, CPU=1)])
    assert counts(plan(spec(C4), [HEAD], wanted, NONE, 0.0)) == {"c4": 5}


def test_limits_of_a_type_send_the_rest_to_another() -> None:
    some = spec(node_type("c4", {"CPU": 4}, most=2), C16)
    result = plan(some, [HEAD], demand(tasks(24, CPU=1)), NONE, 0.0, OFFERS)
    assert counts(result) == {"c4": 2, "c16": 1}


def test_the_limit_of_the_cluster_makes_larger_machines_worth_it() -> None:
    result = plan(spec(C4, C16, max_workers=2), [HEAD], demand(tasks(32, CPU=1)), NONE, 0.0, OFFERS)
    assert counts(result) == {"c16": 2}
    assert not result.unmet


def test_priority_goes_before_price_among_machines_that_suit() -> None:
    dear = node_type("dear", {"CPU": 4}, priority=10, most=2)
    offers = [Offering("dear", price_per_hour=9.0), Offering("c4", price_per_hour=0.2)]
    result = plan(spec(dear, C4), [HEAD], demand(tasks(16, CPU=1)), NONE, 0.0, offers)
    assert counts(result) == {"dear": 2, "c4": 2}


def test_priority_never_sends_plain_work_to_gpu_machines() -> None:
    gpu = node_type("gpu", {"CPU": 16, "GPU": 1}, priority=10)
    offers = [Offering("gpu", price_per_hour=2.0), Offering("c4", price_per_hour=0.2)]
    result = plan(spec(gpu, C4), [HEAD], demand(tasks(16, CPU=1)), NONE, 0.0, offers)
    assert counts(result) == {"c4": 4}


def test_resources_that_the_file_does_not_declare_come_from_the_offer() -> None:
    bare = node_type("m5.xlarge", {})
    offers = [Offering("m5.xlarge", price_per_hour=0.192, resources={"CPU": 4, "memory": 16e9})]
    assert counts(plan(spec(bare), [HEAD], demand(tasks(8, CPU=1)), NONE, 0.0, offers)) == {
        "m5.xlarge": 2
    }


def test_what_cannot_fit_is_named_with_what_would_make_it_fit() -> None:
    result = plan(spec(G1), [HEAD], demand(tasks(3, CPU=1, GPU=4)), NONE, 0.0)
    (unmet,) = result.unmet
    assert unmet.count == 3
    assert unmet.reason.cause is Cause.INFEASIBLE
    assert unmet.reason.text == "needs 4 GPU on one node; largest type has 1"
    assert unmet.fix == "add a node type with at least 1 CPU, 4 GPU"


def test_a_resource_nobody_has_is_named() -> None:
    (unmet,) = plan(spec(C4), [HEAD], demand(tasks(1, tpu=1)), NONE, 0.0).unmet
    assert unmet.reason.text == "needs 1 tpu on one node; no type has any"


def test_two_needs_that_no_type_has_together_are_named() -> None:
    big = node_type("big", {"CPU": 64})
    (unmet,) = plan(spec(G1, big), [HEAD], demand(tasks(1, CPU=32, GPU=1)), NONE, 0.0).unmet
    assert unmet.reason.text == "no type has all of it on one node; the nearest, big, lacks GPU"


def test_a_selector_that_no_type_meets_is_named() -> None:
    shape = Shape.of({"CPU": 1}, [[LabelRule("zone", ("z",))]])
    (unmet,) = plan(spec(C4), [HEAD], demand(Request(shape, 1)), NONE, 0.0).unmet
    assert "labels" in unmet.reason.text


def test_work_that_only_a_busy_node_can_hold_waits_for_it() -> None:
    head = NodeView("h", "head", Phase.READY, is_head=True, total={"CPU": 1, "disk": 1})
    (unmet,) = plan(spec(C4), [head], demand(tasks(1, disk=1)), NONE, 0.0).unmet
    assert unmet.reason.cause is Cause.BUSY


def test_the_old_utilization_target_keeps_headroom() -> None:
    legacy = spec(C4, target=0.8)
    busy = [ready(f"n{i}", C4) for i in range(8)]
    result = plan(legacy, [HEAD, *busy], demand(), NONE, 0.0)
    assert counts(result) == {"c4": 1}  # 8 in use at 0.8 are 10 nodes, of which one is the head
    assert result.launches[0].reason.cause is Cause.UTILIZATION


def test_initial_workers_are_there_at_the_beginning_and_not_for_ever() -> None:
    legacy = spec(C4, initial_workers=7)
    first = plan(legacy, [HEAD], demand(), NONE, 0.0)
    assert counts(first) == {"c4": 7}
    second = plan(legacy, carried_out(first, [HEAD]), demand(), first.history, 5.0)
    assert second.history.brought_up
    assert not plan(legacy, [HEAD], demand(), second.history, 900.0).launches


def test_aggressive_mode_returns_to_initial_workers_for_any_work() -> None:
    legacy = spec(C4, initial_workers=7, mode="aggressive")
    later = History(brought_up=True)
    assert counts(plan(legacy, [HEAD], demand(tasks(1, CPU=1)), later, 0.0)) == {"c4": 7}
    assert not plan(legacy, [HEAD], demand(), later, 0.0).launches


def test_work_on_a_machine_that_will_be_taken_away_gets_another_one() -> None:
    doomed = replace(ready("a", C4, {"CPU": 1}), doomed=True)
    result = plan(YARD, [HEAD, doomed], demand(), NONE, 0.0, OFFERS)
    assert counts(result) == {"c4": 1}
    assert "will be taken away" in result.launches[0].reason.text
    again = plan(YARD, carried_out(result, [HEAD, doomed]), demand(), NONE, 0.0, OFFERS)
    assert again.is_empty
    there = plan(YARD, [HEAD, doomed, ready("b", C4, {"CPU": 3})], demand(), NONE, 0.0, OFFERS)
    assert there.is_empty, "another node has room for it"


def test_a_machine_that_will_be_taken_away_offers_no_room_and_takes_no_place() -> None:
    small = spec(node_type("c4", {"CPU": 4}, most=1), max_workers=1)
    doomed = replace(ready("a", C4, {"CPU": 4}, idle_s=5.0), doomed=True)
    assert plan(small, [HEAD, doomed], demand(), NONE, 0.0, OFFERS).is_empty
    result = plan(small, [HEAD, doomed], demand(tasks(1, CPU=1)), NONE, 0.0, OFFERS)
    assert counts(result) == {"c4": 1}


def test_replacements_are_not_held_back_as_growth() -> None:
    slow = spec(C4, upscaling_speed=0.01)
    doomed = [replace(ready(f"n{i}", C4), doomed=True) for i in range(20)]
    result = plan(slow, [HEAD, *doomed], demand(tasks(100, CPU=4)), NONE, 0.0, OFFERS)
    assert counts(result) == {"c4": 25}, "twenty take over, and five more may come at first"


def test_marks_and_memory_that_nobody_asked_for_are_no_work() -> None:
    total = {"CPU": 4.0, "node:10.0.0.1": 1.0, "object_store_memory": 9.0, "CPU_group_0_ab": 1.0}
    doomed = replace(ready("a", C4), total=total, available={"CPU": 4.0}, doomed=True)
    assert plan(YARD, [HEAD, doomed], demand(), NONE, 0.0, OFFERS).is_empty
