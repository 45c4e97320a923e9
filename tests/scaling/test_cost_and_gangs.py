"""Gangs beside tasks, limits, equal prices and unknown prices: cases that Ray's scheduler answers
correctly, each with the one right answer."""

from __future__ import annotations

import pytest

from shoal.scaling import Cause, Demand, Gang, History, Offering, Strategy, plan
from shoal.scaling.demand import LabelRule, Request, Shape
from shoal.scaling.free_capacity import FreeCapacity, Row
from shoal.scaling.resource_vectors import Item
from tests.scaling.clusters import (
    HEAD,
    carried_out,
    counts,
    demand,
    gang,
    node_type,
    ready,
    spec,
    tasks,
)

# The three sizes cost the same per CPU.
M5 = (
    node_type("m5.large", {"CPU": 2}),
    node_type("m5.4xlarge", {"CPU": 16}),
    node_type("m5.16xlarge", {"CPU": 64}),
)
M5_OFFERINGS = (
    Offering("m5.large", price_per_hour=0.096),
    Offering("m5.4xlarge", price_per_hour=0.768),
    Offering("m5.16xlarge", price_per_hour=3.072),
)


@pytest.mark.parametrize(
    ("task_count", "packed", "nodes"),
    [
        (1, gang(Strategy.STRICT_PACK, {"CPU": 0.5}), 2),
        (50, gang(Strategy.STRICT_PACK, {"CPU": 1}, {"CPU": 1}, count=100), 100),
    ],
)
def test_tasks_do_not_take_the_nodes_of_packed_gangs(
    task_count: int, packed: Gang, nodes: int
) -> None:
    cluster = spec(node_type("w", {"CPU": 4}, max_workers=100))
    pending = demand(tasks(task_count, CPU=4), gangs=[packed])
    result = plan(cluster, [HEAD], pending, History(), 0.0)
    assert counts(result) == {"w": nodes}
    assert not result.unmet
    again = plan(cluster, carried_out(result, [HEAD]), pending, result.history, 1.0)
    assert not again.launches


@pytest.mark.parametrize(
    ("capacity", "gangs", "nodes"),
    [
        ({"GPU": 8}, [gang(Strategy.STRICT_SPREAD, *[{"GPU": 8}] * k) for k in range(2, 7)], 20),
        (
            {"CPU": 1},
            [
                gang(Strategy.STRICT_SPREAD, *[{"CPU": 1}] * 3),
                gang(Strategy.STRICT_SPREAD, *[{"CPU": 0.75}] * 2),
            ],
            5,
        ),
    ],
)
def test_every_spread_gang_gets_its_own_nodes(
    capacity: dict[str, float], gangs: list[Gang], nodes: int
) -> None:
    cluster = spec(node_type("g", capacity, max_workers=100))
    result = plan(cluster, [HEAD], demand(gangs=gangs), History(), 0.0)
    assert counts(result) == {"g": nodes}
    assert not result.unmet


@pytest.mark.parametrize(
    ("sizes", "nodes"),
    [
        ([(9, 4), (18, 3), (20, 3)], 24),
        ([(19, 2), (18, 4), (17, 3)], 27),
        ([(16, 4), (22, 4), (8, 1)], 23),
        ([(60, 4), (60, 4), (60, 4)], 90),
    ],
)
def test_spread_gangs_of_which_not_all_fit_on_one_node_share_the_fewest_nodes(
    sizes: list[tuple[int, int]], nodes: int
) -> None:
    """A node has space for any two or for some of the gangs, never for two bundles of one gang."""
    gangs = [gang(Strategy.STRICT_SPREAD, *[{"GPU": size}] * count) for count, size in sizes]
    cluster = spec(node_type("g", {"GPU": 8}))
    result = plan(cluster, [HEAD], demand(gangs=gangs), History(), 0.0)
    assert counts(result) == {"g": nodes}
    assert not result.unmet
    again = plan(cluster, carried_out(result, [HEAD]), demand(gangs=gangs), result.history, 1.0)
    assert not again.launches


def test_a_limit_that_is_not_reached_is_never_the_reason() -> None:
    cluster = spec(node_type("g", {"GPU": 8}, max_workers=8))
    pending = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"GPU": 8}] * k) for k in range(2, 7)])
    result = plan(cluster, [HEAD], pending, History(), 0.0)
    launched = sum(counts(result).values())
    assert launched <= 8
    for row in result.unmet:
        assert row.reason.cause is Cause.LIMIT
        bundles = row.reason.numbers["bundles"]
        assert bundles > 8 - launched, row


def test_a_floor_for_gpus_does_not_keep_idle_cpu_nodes() -> None:
    cpu, gpu = node_type("cpu", {"CPU": 4}), node_type("gpu", {"CPU": 4, "GPU": 1})
    nodes = [
        HEAD,
        ready("g", gpu, idle_s=1e4),
        *(ready(f"c{i}", cpu, idle_s=1e3) for i in range(5)),
    ]
    pending = Demand(floors=(tasks(1, GPU=1),))
    offerings = [Offering("cpu", price_per_hour=0.1), Offering("gpu", price_per_hour=1.0)]
    result = plan(spec(cpu, gpu), nodes, pending, History(), 0.0, offerings)
    assert sorted(d.node_id for d in result.drains) == [f"c{i}" for i in range(5)]


def test_one_large_instance_wins_over_many_small_ones_beside_it() -> None:
    small, big = node_type("small", {"CPU": 1}, max_workers=40), node_type("big", {"CPU": 64})
    offerings = [Offering("small", price_per_hour=0.04), Offering("big", price_per_hour=3.20)]
    result = plan(spec(small, big), [HEAD], demand(tasks(64, CPU=1)), History(), 0.0, offerings)
    assert counts(result) == {"big": 1}


def test_at_equal_price_the_fewest_instances_are_launched() -> None:
    pending = demand(tasks(1000, CPU=1))
    result = plan(spec(*M5), [HEAD], pending, History(), 0.0, M5_OFFERINGS)
    assert counts(result) == {"m5.large": 4, "m5.4xlarge": 2, "m5.16xlarge": 15}
    assert result.price_per_hour == pytest.approx(48.0)


def test_upscaling_speed_launches_the_large_instances_first() -> None:
    cluster = spec(*M5, upscaling_speed=1.0)
    result = plan(cluster, [HEAD], demand(tasks(1000, CPU=1)), History(), 0.0, M5_OFFERINGS)
    assert counts(result) == {"m5.16xlarge": 5}


def test_a_spread_gang_is_matched_to_the_node_types_that_suit_its_bundles() -> None:
    small = node_type("small", {"CPU": 4, "memory": 100}, max_workers=1)
    big = node_type("big", {"CPU": 8, "memory": 1}, max_workers=1)
    offerings = [Offering("small", price_per_hour=0.1), Offering("big", price_per_hour=0.2)]
    pending = demand(gangs=[gang(Strategy.STRICT_SPREAD, {"CPU": 4}, {"memory": 10})])
    result = plan(spec(small, big), [HEAD], pending, History(), 0.0, offerings)
    assert counts(result) == {"small": 1, "big": 1}
    idle = [HEAD, ready("s", small, idle_s=1.0), ready("b", big, idle_s=1.0)]
    with_nodes = plan(spec(small, big), idle, pending, History(), 0.0, offerings)
    assert not with_nodes.launches
    assert not with_nodes.unmet


@pytest.mark.parametrize("cpus", [8, 32, 128])
def test_without_prices_cpu_work_goes_to_cpu_types_with_custom_resources(cpus: int) -> None:
    cpu = node_type("cpu", {"CPU": cpus, "worker": 1})
    gpu = node_type("gpu", {"CPU": 8, "GPU": 1})
    result = plan(spec(cpu, gpu), [HEAD], demand(tasks(1, CPU=1)), History(), 0.0)
    assert counts(result) == {"cpu": 1}


def test_label_selectors_are_tried_in_the_given_order() -> None:
    on_demand = [LabelRule("ray.io/market-type", ("on-demand",))]
    spot = [LabelRule("ray.io/market-type", ("spot",))]
    reliable = node_type("a", {"CPU": 4}, max_workers=1, labels={"ray.io/market-type": "on-demand"})
    cheap = node_type("b", {"CPU": 4}, labels={"ray.io/market-type": "spot"})
    offerings = [Offering("a", price_per_hour=1.0), Offering("b", price_per_hour=0.1)]
    for order, count, launched in (
        ([on_demand, spot], 4, {"a": 1}),
        ([spot, on_demand], 4, {"b": 1}),
        ([on_demand, spot], 8, {"a": 1, "b": 1}),  # the limit of the first is reached
    ):
        pending = demand(Request(Shape.of({"CPU": 1}, order), count))
        result = plan(spec(reliable, cheap), [HEAD], pending, History(), 0.0, offerings)
        assert counts(result) == launched
        assert not result.unmet


def test_a_thousand_different_gangs_within_a_small_limit_take_few_packing_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 0
    candidates = FreeCapacity.candidates

    def counted(self: FreeCapacity, item: Item) -> list[Row]:
        nonlocal steps
        steps += 1
        return candidates(self, item)

    monkeypatch.setattr(FreeCapacity, "candidates", counted)
    gangs = [gang(Strategy.PACK, *[{"CPU": 0.5 + i / 1000}] * 3) for i in range(1000)]
    cluster = spec(node_type("w", {"CPU": 16}), max_workers=3)
    result = plan(cluster, [HEAD], demand(gangs=gangs), History(), 0.0)
    assert steps < 60_000  # a few for every gang, and no search for instances beyond the limit
    assert counts(result) == {"w": 3}
