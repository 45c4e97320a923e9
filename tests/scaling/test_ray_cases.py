"""The cases of Ray's own scheduler tests (autoscaler v1 and v2), by what they mean.

Where the answer differs from Ray's, the test says so and why. Prices are unknown, as in Ray, unless
a test gives them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.node_phase import Phase
from shoal.scaling import (
    Request,
    Shape,
)
from tests.scaling.clusters import (
    counts,
    demand,
    launching,
    node_type,
    ready,
    tasks,
)
from tests.scaling.ray_cases import AWS, AWS_PRICES, LARGE, P2, P2_X8, free, planned, unmet


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
