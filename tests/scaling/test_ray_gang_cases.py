"""The cases of Ray's own scheduler tests (autoscaler v1 and v2), by what they mean: gangs, pace,
terminations, labels, priorities and the policy.

Where the answer differs from Ray's, the test says so and why. Prices are unknown, as in Ray, unless
a test gives them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.scaling import (
    Gang,
    History,
    Plan,
    Request,
    Shape,
    Strategy,
    plan,
)
from shoal.scaling.demand import LabelRule
from shoal.scaling.simulation import Arrival, SimulationSettings, simulate
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
from tests.scaling.ray_cases import AWS, LARGE, P2, P2_X8, X4, X16, free, planned, unmet


@pytest.mark.parametrize(
    ("gangs", "launched", "left"),
    [
        ([gang(Strategy.STRICT_SPREAD, {"CPU": 16}, {"CPU": 16})], {"p2.8xlarge": 2}, 0),
        ([gang(Strategy.PACK, {"CPU": 16}, {"CPU": 16})], {"p2.8xlarge": 1}, 0),
        ([gang(Strategy.STRICT_PACK, {"CPU": 2}, {"CPU": 2})], {"p2.8xlarge": 1}, 0),
        ([gang(Strategy.PACK, {"CPU": 2}, {"CPU": 2})], {"m4.large": 2}, 0),
        ([gang(Strategy.STRICT_PACK, {"CPU": 32}, {"CPU": 32})], {}, 1),
        ([gang(Strategy.STRICT_SPREAD, {"CPU": 4}, {"CPU": 4}, count=4)], {"p2.8xlarge": 2}, 0),
        (
            [
                gang(Strategy.STRICT_PACK, {"CPU": 16}, {"CPU": 16}),
                gang(Strategy.STRICT_PACK, {"GPU": 4}, {"GPU": 4}),
            ],
            {"p2.8xlarge": 1},
            0,
        ),
    ],
)
def test_gangs_are_placed_by_their_strategy(
    gangs: list[Gang], launched: dict[str, int], left: int
) -> None:
    result = planned([LARGE, P2_X8], demand(gangs=gangs))
    assert counts(result) == launched
    assert unmet(result) == left


def test_a_spread_gang_of_gpus_gets_single_gpu_nodes() -> None:
    pending = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"GPU": 1}] * 8)])
    assert counts(planned(AWS, pending)) == {"p2.xlarge": 8}


def test_gangs_floors_minimums_and_tasks_together() -> None:
    """Three more of the first type: one for the minimum, one for the floor, one for the spread
    gang, which the other demand then shares; one more GPU node for the second GPU task."""
    first = node_type("first", {"CPU": 4}, min_workers=2, max_workers=4)
    second = node_type("second", {"CPU": 1, "GPU": 1}, max_workers=10)
    pending = demand(
        tasks(1, CPU=2),
        tasks(1, CPU=1, GPU=1),
        tasks(1, GPU=1),
        gangs=[
            gang(Strategy.STRICT_SPREAD, *[{"CPU": 2}] * 4),
            gang(Strategy.STRICT_PACK, {"CPU": 3}, {"CPU": 3}),
            gang(Strategy.PACK, *[{"CPU": 1}] * 3),
        ],
        floors=[tasks(10, CPU=1)],
    )
    nodes = [ready("a", first, {"CPU": 2}), ready("b", second, {"CPU": 1, "GPU": 1})]
    result = planned([first, second], pending, nodes)
    assert counts(result) == {"first": 3, "second": 1}
    assert [row.count for row in result.unmet] == [1]


def test_gangs_of_all_strategies_share_nodes() -> None:
    gangs = [
        gang(Strategy.STRICT_SPREAD, *[{"GPU": 2}] * 3),
        gang(Strategy.STRICT_PACK, *[{"GPU": 2}] * 4),
        gang(Strategy.PACK, *[{"GPU": 2}] * 2),
        gang(Strategy.SPREAD, *[{"GPU": 2}] * 2),
    ]
    result = planned(AWS, demand(tasks(2, GPU=4), gangs=gangs), free(P2_X8, 2), max_workers=10)
    assert counts(result) == {"p2.8xlarge": 2}
    assert not result.unmet


def test_a_task_for_a_whole_node_comes_on_top_of_the_nodes_that_gangs_share() -> None:
    gangs = [
        gang(Strategy.STRICT_SPREAD, *[{"GPU": 2}] * 3),
        gang(Strategy.PACK, *[{"GPU": 2}] * 5),
    ]
    result = planned(AWS, demand(tasks(1, GPU=8), gangs=gangs))
    assert counts(result) == {"p2.8xlarge": 4}
    assert not result.unmet


def test_equal_spread_gangs_and_tasks_share_nodes() -> None:
    spread = gang(Strategy.STRICT_SPREAD, *[{"GPU": 2}] * 3, count=3)
    result = planned(AWS, demand(tasks(6, GPU=1), gangs=[spread]), free(P2_X8, 2))
    assert counts(result) == {"p2.8xlarge": 1}
    packed = gang(Strategy.STRICT_PACK, *[{"GPU": 2}] * 3)
    assert not planned(AWS, demand(tasks(2, GPU=1), gangs=[packed]), free(P2_X8)).launches


@pytest.mark.parametrize(
    ("gangs", "launched"),
    [
        ([gang(Strategy.PACK, *[{"GPU": 8}] * 25)], 25),
        (
            [
                gang(Strategy.STRICT_SPREAD, *[{"GPU": 2}] * 25),
                gang(Strategy.PACK, *[{"GPU": 6}] * 30),
            ],
            30,
        ),
    ],
)
def test_gangs_are_not_throttled(gangs: list[Gang], launched: int) -> None:
    worker = replace(P2_X8, min_workers=10, max_workers=40)
    result = planned([worker], demand(gangs=gangs), upscaling_speed=1.0)
    assert counts(result) == {"p2.8xlarge": launched}


def test_a_gang_that_the_limit_does_not_allow_whole_launches_nothing() -> None:
    """As in Ray v2; v1 launches for some of its bundles."""
    worker = replace(P2_X8, min_workers=10, max_workers=40)
    gangs = [
        gang(Strategy.STRICT_SPREAD, *[{"GPU": 2}] * 25),
        gang(Strategy.PACK, *[{"GPU": 6}] * 60),
    ]
    result = planned([worker], demand(gangs=gangs))
    assert counts(result) == {"p2.8xlarge": 25}
    assert unmet(result) == 1


@pytest.mark.parametrize(("speed", "launched"), [(1.0, 5), (25.0, 25), (9999.0, 50)])
def test_upscaling_speed_bounds_the_first_launches(speed: float, launched: int) -> None:
    worker = replace(LARGE, max_workers=100)
    result = planned([worker], demand(tasks(100, CPU=1)), upscaling_speed=speed)
    assert counts(result) == {"m4.large": launched}


def test_launching_nodes_count_against_upscaling_speed() -> None:
    """Ray counts nodes per type, Shoal all of them, the head included: seven instead of six."""
    worker = replace(P2_X8, max_workers=40)
    nodes = [*free(worker, 8), launching("a", worker), launching("b", worker)]
    result = planned([worker], demand(tasks(23, GPU=8)), nodes, upscaling_speed=1.0)
    assert counts(result) == {"p2.8xlarge": 9 - 2}


@pytest.mark.parametrize(
    ("existing", "requests", "launched"),
    [
        # Ray v1 adds an instance for the CPU tasks, although the GPU nodes have room for them.
        (0, [tasks(1000, GPU=1), tasks(1000, CPU=1)], {"p2.8xlarge": 125}),
        (50, [tasks(1000, GPU=1), tasks(1000, CPU=2)], {"p2.8xlarge": 75}),
        (125, [tasks(1000, GPU=1), tasks(1000, CPU=1)], {}),
        (
            500,
            [tasks(1000, GPU=8), tasks(1000, CPU=64)],
            {"p2.8xlarge": 500, "m4.16xlarge": 500},
        ),
    ],
)
def test_a_backlog_of_thousands_uses_free_nodes_first(
    existing: int, requests: list[Request], launched: dict[str, int]
) -> None:
    cpu, gpu = replace(X16, max_workers=1000), replace(P2_X8, max_workers=1000)
    nodes = [*free(cpu, existing), *free(gpu, existing)]
    result = planned([LARGE, X4, cpu, P2, gpu], demand(*requests), nodes)
    assert counts(result) == launched


def removed(result: Plan) -> set[str]:
    return {x.node_id for x in result.cancels} | {x.node_id for x in result.drains}


def test_above_a_limit_launching_nodes_go_first_then_idle_ones_and_never_busy_ones() -> None:
    """Ray terminates busy nodes, too."""
    first = node_type("first", {"CPU": 1}, max_workers=2)
    second = node_type("second", {"CPU": 1}, max_workers=2)
    nodes = [
        launching("launching", first),
        ready("idle", first, idle_s=10.0),
        ready("half", second, {"CPU": 0.5}),
        ready("busy", second),
    ]
    for limit, gone in (
        (4, set()),
        (3, {"launching"}),
        (2, {"launching", "idle"}),
        (1, {"launching", "idle"}),
    ):
        assert removed(planned([first, second], demand(), nodes, max_workers=limit)) == gone


def test_an_outdated_idle_node_is_replaced_and_the_head_never() -> None:
    """Ray terminates it at once, Shoal when it has been idle for some seconds."""
    worker = node_type("cpu", {"CPU": 1}, min_workers=2, max_workers=5)
    outdated = replace(ready("old", worker, idle_s=60.0), outdated=True)
    head = replace(HEAD, outdated=True)
    cluster = spec(worker)
    result = plan(
        cluster, [head, outdated, ready("new", worker, idle_s=1.0)], demand(), History(), 0.0
    )
    assert removed(result) == {"old"}
    assert counts(result) == {"cpu": 1}


@pytest.mark.parametrize("timeout", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("has_floor", [False, True])
def test_an_idle_node_goes_after_the_timeout_unless_a_floor_needs_it(
    timeout: float, has_floor: bool
) -> None:
    worker = node_type("cpu", {"CPU": 1}, max_workers=5, idle_timeout_s=timeout)
    nodes = [ready("busy", worker), ready("idle", worker, idle_s=5.0)]
    result = planned([worker], demand(floors=[tasks(2, CPU=1)] if has_floor else []), nodes)
    assert removed(result) == ({"idle"} if timeout <= 5.0 and not has_floor else set())


def test_label_selectors_choose_the_type_and_the_first_that_can_be_met_wins() -> None:
    west = node_type("west", {"CPU": 4}, labels={"region": "west"})
    east = node_type("east", {"CPU": 1}, labels={"region": "east"})
    in_west, in_east = LabelRule("region", ("west",)), LabelRule("region", ("east",))
    elsewhere = LabelRule("region", ("north",))

    def launched(*selectors: LabelRule) -> dict[str, int]:
        shape = Shape.of({"CPU": 1}, [[rule] for rule in selectors])
        return counts(planned([west, east], demand(Request(shape))))

    assert launched() == {"east": 1}
    assert launched(in_west) == {"west": 1}
    assert launched(in_west, in_east) == {"west": 1}
    assert launched(in_east, in_west) == {"east": 1}
    assert launched(elsewhere, in_west) == {"west": 1}
    assert launched(elsewhere) == {}


def test_of_equally_suitable_types_the_one_of_higher_priority_is_launched() -> None:
    types = [node_type("a", {"CPU": 4}), node_type("b", {"CPU": 4}, priority=1)]
    assert counts(planned(types, demand(tasks(3, CPU=4)))) == {"b": 3}


POLICY = spec(
    LARGE,
    replace(X4, max_workers=10_000),
    replace(X16, max_workers=100),
    P2,
    P2_X8,
    upscaling_speed=1.0,
)
BOOT = SimulationSettings(boot_s=120.0, boot_jitter=0.0, interval_s=5.0)


def test_five_thousand_tasks_are_done_as_soon_as_rays_policy_demands() -> None:
    trace = [Arrival(0.0, 5000, 200.0, Shape.of({"CPU": 1}))]
    result = simulate(POLICY, [], trace, BOOT)
    assert not result.unfinished
    assert result.wait_max + 200.0 < 850.0
    # Actors must have started sooner; they run as long as the tasks wait.
    assert result.wait_max < 650.0


def test_a_thousand_gangs_start_as_soon_as_rays_policy_demands() -> None:
    trace = [
        Arrival(0.0, 500, 5000.0, gang=gang(strategy, {"CPU": 1}, {"CPU": 2}))
        for strategy in (Strategy.STRICT_PACK, Strategy.STRICT_SPREAD)
    ]
    result = simulate(POLICY, [], trace, BOOT)
    assert not result.unfinished
    assert result.wait_max < 630.0
