"""The cases of Ray's own scheduler tests (autoscaler v1 and v2), by what they mean: existing nodes,
floors on a head with resources, what is left over, priorities and failures.

Where the answer differs from Ray's, the test says so and why. Prices are unknown, as in Ray, unless
a test gives them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from shoal.core.node_phase import Phase
from shoal.scaling import Demand, Gang, History, Plan, Request, Shape, Strategy, plan
from shoal.scaling.demand import LabelRule
from shoal.scaling.inputs import LaunchFailure
from shoal.spec.cluster_spec import NodeType
from tests.scaling.clusters import (
    HEAD,
    counts,
    demand,
    gang,
    launching,
    node_type,
    ready,
    spec,
    tasks,
)
from tests.scaling.ray_cases import AWS, P2, P2_X8, free, planned, unmet


def test_minimums_count_running_and_launching_nodes_of_known_types() -> None:
    types = [
        node_type("one", {"CPU": 1}, min_workers=1, max_workers=10),
        node_type("none", {"CPU": 1}, max_workers=10),
        node_type("two", {"CPU": 1}, min_workers=2, max_workers=10),
    ]
    assert counts(planned(types, demand())) == {"one": 1, "two": 2}
    running = [ready("a", types[0]), ready("b", types[0])]
    assert counts(planned(types, demand(), running)) == {"two": 2}
    requested = [launching("a", types[0], Phase.REQUESTED), launching("b", types[0])]
    assert counts(planned(types, demand(), requested)) == {"two": 2}


def test_an_idle_node_of_a_type_that_no_longer_exists_goes() -> None:
    worker = node_type("cpu", {"CPU": 1}, max_workers=5)
    former = ready("old", node_type("former", {"CPU": 1}), idle_s=600.0)
    result = planned([worker], demand(), [former])
    assert {d.node_id for d in result.drains} == {"old"}


@pytest.mark.parametrize(("limit", "gone"), [(3, set()), (2, {"launching"})])
def test_above_the_limit_of_a_type_the_least_useful_nodes_go(limit: int, gone: set[str]) -> None:
    worker = node_type("t", {"CPU": 1}, max_workers=limit)
    nodes = [launching("launching", worker), ready("idle", worker, idle_s=1.0),
             ready("half", worker, {"CPU": 0.5})]  # fmt: skip
    result = planned([worker], demand(tasks(1, CPU=1)), nodes)
    assert {c.node_id for c in result.cancels} | {d.node_id for d in result.drains} == gone


def leftover(
    types: Mapping[str, Mapping[str, float]], needs: list[Mapping[str, float]], *, spread: bool
) -> int:
    """How many tasks, or gangs, are left over with one node of each type."""
    one_each = [node_type(name, resources, max_workers=1) for name, resources in types.items()]
    pending = (
        demand(gangs=[gang(Strategy.STRICT_SPREAD, *needs)])
        if spread
        else demand(*(Request(Shape.of(need)) for need in needs))
    )
    return unmet(planned(one_each, pending))


@pytest.mark.parametrize(
    ("types", "needs", "spread", "left"),
    [
        ({"a": {"CPU": 0}}, [{"GPU": 2}, {"GPU": 2}], False, 2),
        ({"a": {"GPU": 2}}, [{"GPU": 2}, {"GPU": 2}], False, 1),
        ({"a": {"GPU": 4}}, [{"GPU": 2}, {"GPU": 2}], False, 0),
        ({"a": {"GPU": 2}, "b": {"GPU": 2, "CPU": 2}}, [{"GPU": 2}, {"GPU": 2}], False, 0),
        ({"a": {"GPU": 2}, "b": {"CPU": 2}}, [{"GPU": 2}, {"GPU": 2}], False, 1),
        ({"a": {"GPU": 3}}, [{"GPU": 1}, {"GPU": 1}], True, 1),
        ({"a": {"GPU": 3}}, [{"GPU": 1}, {"GPU": 1}], False, 0),
        ({"a": {"CPU": 0, "custom": 1}}, [{"custom": 1}], False, 0),
        ({"a": {"CPU": 0, "custom": 1}}, [{"CPU": 1}], False, 1),
        ({"a": {"GPU": 1}}, [{"GPU": 1, "CPU": 1}, {"GPU": 1}], False, 1),
        ({"a": {"GPU": 1, "CPU": 1}}, [{"GPU": 1, "CPU": 1}, {"GPU": 1}], False, 1),
    ],
)
def test_what_does_not_fit_is_left_over(
    types: Mapping[str, Mapping[str, float]],
    needs: list[Mapping[str, float]],
    spread: bool,
    left: int,
) -> None:
    assert leftover(types, needs, spread=spread) == left


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_the_limit_of_the_cluster_decides_how_many_gpu_tasks_start(limit: int) -> None:
    result = planned([P2], demand(tasks(4, GPU=1)), max_workers=limit)
    assert counts(result) == {"p2.xlarge": limit}
    assert unmet(result) == 4 - limit


def test_large_and_small_tasks_together_at_the_limit_of_the_large_type() -> None:
    at_least_two = replace(P2_X8, min_workers=2)
    pending = demand(tasks(5, GPU=8), tasks(1, GPU=1))
    result = planned([at_least_two, P2], pending, free(P2_X8, 3))
    assert counts(result) == {"p2.8xlarge": 1, "p2.xlarge": 1}
    assert unmet(result) == 1


def test_gpu_and_cpu_tasks_share_one_node_where_both_fit() -> None:
    """Ray v1 launches a node for each."""
    assert counts(planned(AWS, demand(tasks(1, GPU=1), tasks(1, CPU=16)))) == {"p2.xlarge": 1}


HEAD_WITH_GPU = replace(HEAD, total={"CPU": 4.0, "GPU": 1.0}, available={})


@pytest.mark.parametrize(("floor", "launched"), [(1, {}), (2, {"p2.xlarge": 1})])
def test_a_floor_counts_the_head_also_if_it_is_busy(floor: int, launched: dict[str, int]) -> None:
    pending = demand(floors=[tasks(floor, GPU=1)])
    result = plan(spec(P2), [HEAD_WITH_GPU], pending, History(), 0.0)
    assert counts(result) == launched


@pytest.mark.parametrize(
    ("floors", "launched"),
    [
        ([tasks(1, CPU=1)], {"m4.large": 1}),
        ([tasks(1, GPU=8)], {"p2.8xlarge": 1}),
        ([tasks(4, CPU=32)], {"m4.16xlarge": 2}),
    ],
)
def test_a_floor_gets_the_instances_that_suit_its_size(
    floors: list[Request], launched: dict[str, int]
) -> None:
    assert counts(planned(AWS, demand(floors=floors))) == launched


def test_a_floor_keeps_idle_nodes_until_it_is_withdrawn() -> None:
    worker = node_type("t", {"CPU": 1, "WORKER": 1}, idle_timeout_s=60.0)
    nodes = [ready(f"n{i}", worker, idle_s=600.0) for i in range(4)]
    held = demand(floors=[Request(Shape.of({"CPU": 0.2, "WORKER": 1}), 3)])
    assert len(planned([worker], held, nodes).drains) == 1
    assert len(planned([worker], demand(), nodes).drains) == 4


@pytest.mark.parametrize(
    ("minimum", "floor", "pending", "launched"),
    [(1, 2, 0, 2), (2, 1, 0, 2), (1, 2, 2, 2), (1, 2, 3, 3), (0, 3, 1, 3)],
)
def test_minimums_floors_and_tasks_do_not_add_up(
    minimum: int, floor: int, pending: int, launched: int
) -> None:
    """The same nodes serve all three."""
    worker = node_type("t", {"CPU": 1}, min_workers=minimum)
    need = demand(*[tasks(pending, CPU=1)] * bool(pending), floors=[tasks(floor, CPU=1)])
    assert counts(planned([worker], need)) == {"t": launched}


FIRST = node_type("first", {"CPU": 4}, priority=10)
SECOND = node_type("second", {"CPU": 4})


def after_failures(*failures: LaunchFailure, types: tuple[NodeType, ...] = (FIRST, SECOND)) -> Plan:
    history = History()
    for failure in failures:
        history = history.with_failure(failure)
    return plan(spec(*types), [HEAD], demand(tasks(1, CPU=1)), history, 1000.0)


def test_a_type_that_just_failed_is_avoided_whatever_its_priority() -> None:
    assert counts(after_failures()) == {"first": 1}
    assert counts(after_failures(LaunchFailure("first", 990.0))) == {"second": 1}
    # Ray's recovery takes ten minutes; here the first failure counts for one.
    assert counts(after_failures(LaunchFailure("first", 900.0))) == {"first": 1}


def test_a_type_that_fails_again_and_again_is_avoided_for_longer() -> None:
    failures = [LaunchFailure("first", at) for at in (700.0, 800.0, 900.0)]
    assert counts(after_failures(*failures)) == {"second": 1}


def test_priority_goes_before_a_better_fit() -> None:
    """Ray prefers the node that is filled best, and priority only among equals: a matter of taste.
    Where prices are known, a better fit shows in the price, and priority is there to overrule
    it."""
    small = node_type("small", {"CPU": 2})
    assert counts(after_failures(types=(FIRST, small))) == {"first": 1}


def test_each_bundle_of_a_gang_goes_where_its_labels_match() -> None:
    spot = node_type("spot", {"CPU": 4}, labels={"market": "spot"})
    stable = node_type("stable", {"CPU": 4}, labels={"market": "on-demand"})

    def on(market: str) -> Shape:
        return Shape.of({"CPU": 1}, [[LabelRule("market", (market,))]])

    for strategy in (Strategy.PACK, Strategy.SPREAD, Strategy.STRICT_SPREAD):
        mixed = Gang((on("on-demand"), on("spot"), on("spot")), strategy)
        result = planned([spot, stable], Demand(gangs=(mixed,)))
        spots = 2 if strategy is Strategy.STRICT_SPREAD else 1
        assert counts(result) == {"spot": spots, "stable": 1}
    # No node has both labels.
    impossible = Gang((on("on-demand"), on("spot")), Strategy.STRICT_PACK)
    result = planned([spot, stable], Demand(gangs=(impossible,)))
    assert not result.launches
    assert unmet(result) == 1
