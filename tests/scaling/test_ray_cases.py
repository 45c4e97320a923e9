"""The cases of Ray's own scheduler tests (autoscaler v1 and v2), by what they mean.

Where the answer differs from Ray's, the test says so and why. Prices are unknown, as in Ray, unless
a test gives them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from shoal.core.node_phase import Phase
from shoal.scaling import (
    Demand,
    Gang,
    History,
    NodeView,
    Offering,
    Plan,
    Request,
    Shape,
    Strategy,
    plan,
)
from shoal.scaling.demand import LabelRule
from shoal.scaling.simulation import Arrival, SimulationSettings, simulate
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

LARGE = node_type("m4.large", {"CPU": 2}, max_workers=10)
X4 = node_type("m4.4xlarge", {"CPU": 16}, max_workers=8)
X16 = node_type("m4.16xlarge", {"CPU": 64}, max_workers=4)
P2 = node_type("p2.xlarge", {"CPU": 16, "GPU": 1}, max_workers=10)
P2_X8 = node_type("p2.8xlarge", {"CPU": 32, "GPU": 8}, max_workers=4)
AWS = (LARGE, X4, X16, P2, P2_X8)
AWS_PRICES = {
    "m4.large": 0.1,
    "m4.4xlarge": 0.8,
    "m4.16xlarge": 3.2,
    "p2.xlarge": 0.9,
    "p2.8xlarge": 7.2,
}


def planned(
    types: Sequence[NodeType],
    pending: Demand,
    nodes: Sequence[NodeView] = (),
    *,
    max_workers: int = 10_000,
    upscaling_speed: float = 1e6,
    prices: Mapping[str, float] | None = None,
) -> Plan:
    cluster = spec(*types, max_workers=max_workers, upscaling_speed=upscaling_speed)
    offerings = [Offering(name, price_per_hour=price) for name, price in (prices or {}).items()]
    return plan(cluster, [HEAD, *nodes], pending, History(), 0.0, offerings)


def free(node_type: NodeType, count: int = 1) -> list[NodeView]:
    return [ready(f"{node_type.name}-{i}", node_type, node_type.resources) for i in range(count)]


def unmet(result: Plan) -> int:
    return sum(row.count for row in result.unmet)


@pytest.mark.parametrize(
    ("requests", "launched"),
    [
        ([tasks(1, GPU=8)], {"p2.8xlarge": 1}),
        ([tasks(8, GPU=1)], {"p2.8xlarge": 1}),
        ([tasks(4, GPU=1)], {"p2.xlarge": 4}),
        ([tasks(3, CPU=32, GPU=1)], {"p2.8xlarge": 3}),
        ([tasks(3, CPU=64)], {"m4.16xlarge": 3}),
        ([tasks(1, CPU=64), tasks(1, CPU=1)], {"m4.16xlarge": 1, "m4.large": 1}),
        ([tasks(1, CPU=64), tasks(2, CPU=9)], {"m4.16xlarge": 1, "m4.4xlarge": 2}),
        ([tasks(5, CPU=16)], {"m4.16xlarge": 1, "m4.4xlarge": 1}),
        ([tasks(10, CPU=8)], {"m4.16xlarge": 1, "m4.4xlarge": 1}),
        ([tasks(100, CPU=1)], {"m4.16xlarge": 1, "m4.4xlarge": 2, "m4.large": 2}),
        ([tasks(8, GPU=1), tasks(64, CPU=1)], {"p2.8xlarge": 1, "m4.4xlarge": 2}),
    ],
)
def test_work_gets_the_instances_that_suit_its_size(
    requests: list[Request], launched: dict[str, int]
) -> None:
    result = planned(AWS, demand(*requests))
    assert counts(result) == launched
    assert not result.unmet


def test_work_that_fits_on_no_type_launches_nothing() -> None:
    result = planned(AWS, demand(tasks(3, CPU=64, GPU=1)))
    assert not result.launches
    assert unmet(result) == 3


def test_six_gpus_are_bought_one_by_one_where_that_is_cheaper() -> None:
    """Ray takes one instance with eight GPUs, which costs a third more."""
    result = planned(AWS, demand(tasks(6, GPU=1)), prices=AWS_PRICES)
    assert counts(result) == {"p2.xlarge": 6}


def test_the_cpus_of_a_gpu_node_are_used_before_more_are_bought() -> None:
    """Ray buys 64 CPUs for 64 tasks and leaves the 16 of the GPU node idle."""
    result = planned(AWS, demand(tasks(1, GPU=1), tasks(64, CPU=1)), prices=AWS_PRICES)
    assert counts(result) == {"p2.xlarge": 1, "m4.4xlarge": 3}


CPU16 = node_type("cpu", {"CPU": 16}, max_workers=10)
GPU16 = node_type("gpu", {"CPU": 16, "GPU": 1}, max_workers=10)


@pytest.mark.parametrize(
    ("requests", "launched"),
    [
        ([tasks(1, CPU=16)], {"cpu": 1}),
        ([tasks(30, CPU=1), tasks(1, CPU=1, GPU=1)], {"cpu": 1, "gpu": 1}),
        ([tasks(15, CPU=1), tasks(1, CPU=1, GPU=1)], {"gpu": 1}),
    ],
)
def test_cpu_work_goes_to_gpu_nodes_only_if_they_are_needed_anyway(
    requests: list[Request], launched: dict[str, int]
) -> None:
    assert counts(planned([CPU16, GPU16], demand(*requests))) == launched


CPU1 = node_type("cpu", {"CPU": 1}, max_workers=10)
GPU100 = node_type("gpu", {"CPU": 100, "GPU": 1}, max_workers=10)


def test_a_gpu_node_is_complemented_by_cpu_nodes() -> None:
    pending = demand(tasks(4, GPU=1), tasks(404, CPU=1))
    assert counts(planned([CPU1, GPU100], pending, max_workers=100)) == {"gpu": 4, "cpu": 4}


def test_cpu_work_uses_a_gpu_node_if_the_cpu_types_are_not_enough() -> None:
    """Ray v1 leaves 90 of 100 tasks waiting; v2 buys the GPU node beside ten CPU nodes that it
    makes superfluous."""
    result = planned([CPU1, GPU100], demand(tasks(100, CPU=1)), max_workers=11)
    assert counts(result) == {"gpu": 1}
    assert not result.unmet


@pytest.mark.parametrize(
    ("max_workers", "existing", "task_count", "launched", "left"),
    [(2, 0, 10, 2, 6), (10, 10, 10, 0, 10), (10, 0, 10, 5, 0), (9999, 0, 40, 10, 20)],
)
def test_limits_of_the_type_and_of_the_cluster_hold(
    max_workers: int, existing: int, task_count: int, launched: int, left: int
) -> None:
    busy = [ready(f"n{i}", LARGE) for i in range(existing)]
    result = planned([LARGE], demand(tasks(task_count, CPU=1)), busy, max_workers=max_workers)
    assert counts(result).get("m4.large", 0) == launched
    assert unmet(result) == left


@pytest.mark.parametrize(
    ("existing", "large_tasks", "launched", "left"),
    [
        (0, 1, {"p2.8xlarge": 2}, 0),
        (0, 2, {"p2.8xlarge": 2}, 0),
        (0, 4, {"p2.8xlarge": 4}, 0),
        (0, 8, {"p2.8xlarge": 4}, 4),
        (3, 5, {"p2.8xlarge": 1}, 1),
    ],
)
def test_minimums_serve_the_demand_too(
    existing: int, large_tasks: int, launched: dict[str, int], left: int
) -> None:
    at_least_two = replace(P2_X8, min_workers=2)
    result = planned([at_least_two, P2], demand(tasks(large_tasks, GPU=8)), free(P2_X8, existing))
    assert counts(result) == launched
    assert unmet(result) == left


@pytest.mark.parametrize("existing", [1, 2, 3])
def test_a_small_task_beside_large_ones_gets_a_small_node(existing: int) -> None:
    at_least_two = replace(P2_X8, min_workers=2)
    pending = demand(tasks(3, GPU=8), tasks(1, GPU=1))
    result = planned([at_least_two, P2], pending, free(P2_X8, existing))
    expected = {"p2.xlarge": 1, "p2.8xlarge": 3 - existing}
    assert counts(result) == {name: n for name, n in expected.items() if n}


def test_every_minimum_is_launched_and_a_type_without_workers_is_not() -> None:
    types = [
        node_type("m2.large", {"CPU": 1}, min_workers=5, max_workers=10),
        LARGE,
        node_type("gpu", {"GPU": 2}, min_workers=2, max_workers=2),
        node_type("none", {"GPU": 1}, max_workers=0),
    ]
    nodes = [*free(types[0]), *free(LARGE)]
    result = planned(types, demand(tasks(5, CPU=2)))
    assert counts(result) == {"m2.large": 5, "m4.large": 5, "gpu": 2}
    result = planned(types, demand(tasks(5, CPU=2)), nodes)
    assert counts(result) == {"m2.large": 4, "m4.large": 4, "gpu": 2}
    result = planned(types, demand(tasks(5, GPU=1)))
    assert counts(result) == {"m2.large": 5, "gpu": 2}
    assert unmet(result) == 1


@pytest.mark.parametrize("available", [0.9, 1.0])
def test_a_task_starts_a_node_unless_one_has_room(available: float) -> None:
    worker = node_type("t", {"CPU": 1})
    result = planned([worker], demand(tasks(1, CPU=1)), [ready("n", worker, {"CPU": available})])
    assert counts(result) == ({} if available == 1.0 else {"t": 1})
    pending_node = [launching("n", worker, Phase.REQUESTED)]
    assert not planned([worker], demand(tasks(1, CPU=1)), pending_node).launches


SMALL_GPU = node_type("gpu", {"CPU": 1, "GPU": 1}, max_workers=1)
THREE_CPUS = node_type("cpu", {"CPU": 3}, max_workers=1)


@pytest.mark.parametrize(
    "requests",
    [
        [tasks(3, CPU=1), tasks(1, CPU=1, GPU=1)],
        [tasks(1, CPU=2), tasks(1, CPU=1), tasks(2, CPU=0.5, GPU=0.5)],
    ],
)
def test_mixed_tasks_fill_one_node_of_each_type(requests: list[Request]) -> None:
    result = planned([SMALL_GPU, THREE_CPUS], demand(*requests))
    assert counts(result) == {"gpu": 1, "cpu": 1}
    assert not result.unmet


def test_a_node_whose_cpus_are_taken_does_not_hold_a_gpu_task() -> None:
    fragmented = [ready("n", SMALL_GPU, {"CPU": 0, "GPU": 1})]
    pending = demand(tasks(2, CPU=1), tasks(1, CPU=1, GPU=1))
    result = planned([SMALL_GPU, THREE_CPUS], pending, fragmented)
    assert counts(result) == {"cpu": 1}
    assert unmet(result) == 1


@pytest.mark.parametrize("cpus", [1, 2])
def test_the_smallest_type_without_gpus_is_preferred(cpus: int) -> None:
    types = [
        node_type("large", {"CPU": 10}),
        node_type("small", {"CPU": 5}),
        node_type("gpu", {"CPU": 2, "GPU": 2}),
    ]
    assert counts(planned(types, demand(tasks(1, CPU=cpus)))) == {"small": 1}
    types = [node_type("gpu", {"CPU": 1, "GPU": 2}), node_type("custom", {"CPU": 2, "XXX": 2})]
    assert counts(planned(types, demand(tasks(1, CPU=1)))) == {"custom": 1}


IMPLICIT = "node:__internal_implicit_resource_a"


def test_every_node_has_one_of_an_implicit_resource() -> None:
    worker = node_type("t", {"CPU": 1})
    one, half = Shape.of({IMPLICIT: 1.0}), Shape.of({IMPLICIT: 0.5})
    # The head has one, too.
    assert not planned([worker], demand(Request(one))).launches
    assert counts(planned([worker], demand(Request(one, 2)))) == {"t": 1}
    assert counts(planned([worker], demand(Request(half, 4)))) == {"t": 1}
    assert counts(planned([worker], demand(Request(one, 2), Request(half)))) == {"t": 2}


def test_a_floor_is_met_by_minimums_and_by_more_nodes() -> None:
    cpu = node_type("cpu", {"CPU": 1}, min_workers=1, max_workers=5)
    gpu = node_type("gpu", {"CPU": 1, "GPU": 2}, max_workers=1)
    assert counts(planned([cpu, gpu], demand(floors=[tasks(1, CPU=1)]))) == {"cpu": 1}
    more = demand(floors=[tasks(2, CPU=1), tasks(1, GPU=1)])
    assert counts(planned([cpu, gpu], more)) == {"cpu": 1, "gpu": 1}


def test_a_floor_that_cannot_be_met_whole_is_met_in_part() -> None:
    """Ray meets none of it."""
    cpu = node_type("cpu", {"CPU": 1}, min_workers=1, max_workers=5)
    gpu = node_type("gpu", {"CPU": 1, "GPU": 2}, max_workers=1)
    result = planned([cpu, gpu], demand(floors=[tasks(2, CPU=1), tasks(2, GPU=2)]))
    assert counts(result) == {"cpu": 1, "gpu": 1}
    assert unmet(result) == 1


@pytest.mark.parametrize("used", [0.0, 1.0])
@pytest.mark.parametrize(("floor", "launched"), [(0, 0), (4, 0), (7, 2), (70, 33)])
def test_a_floor_counts_the_whole_of_each_node_and_is_not_throttled(
    floor: int, launched: int, used: float
) -> None:
    worker = replace(P2_X8, max_workers=40)
    nodes = [ready(f"n{i}", worker, {"GPU": 8 * (1 - used), "CPU": 32.0}) for i in range(2)]
    pending = demand(floors=[tasks(floor, GPU=4)] if floor else [])
    result = planned([worker], pending, nodes, upscaling_speed=1.0)
    assert counts(result).get("p2.8xlarge", 0) == launched


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
