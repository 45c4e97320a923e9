"""What limits allow is used well: the most gangs, then the most tasks, at the lowest price."""

from __future__ import annotations

from collections.abc import Sequence

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
from shoal.spec.cluster_spec import ClusterSpec, NodeType
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


def planned_twice(
    cluster: ClusterSpec, nodes: Sequence[NodeView], pending: Demand, prices: dict[str, float]
) -> Plan:
    """The plan, which must be followed by one without launches."""
    offerings = [Offering(name, price_per_hour=price) for name, price in prices.items()]
    result = plan(cluster, [HEAD, *nodes], pending, History(), 0.0, offerings)
    after = carried_out(result, [HEAD, *nodes])
    again = plan(cluster, after, pending, result.history, 1.0, offerings)
    assert not again.launches
    assert unmet(again) == unmet(result)
    return result


def unmet(result: Plan) -> int:
    return sum(row.count for row in result.unmet)


def test_a_gang_does_not_take_the_only_node_that_a_task_fits_on() -> None:
    gpu = node_type("gpu", {"CPU": 8, "GPU": 2}, max_workers=1)
    cpu = node_type("cpu", {"CPU": 8, "disk": 1}, max_workers=1)
    pending = demand(
        tasks(3, CPU=8, disk=1),
        gangs=[gang(Strategy.PACK, {"CPU": 0.5}, {"CPU": 0.5}, {"CPU": 4, "GPU": 1})],
    )
    result = planned_twice(spec(gpu, cpu), [], pending, {"gpu": 1.8, "cpu": 0.3})
    assert counts(result) == {"gpu": 1, "cpu": 1}
    assert unmet(result) == 2


def test_tasks_of_different_sizes_are_combined_so_that_the_most_fit() -> None:
    worker = node_type("t", {"CPU": 16, "GPU": 2}, max_workers=3)
    idle = ready("n", worker, {"CPU": 16, "GPU": 2}, idle_s=1.0)
    pending = demand(tasks(19, CPU=6, GPU=1), tasks(7, CPU=8), tasks(2, CPU=4))
    result = planned_twice(spec(worker), [idle], pending, {"t": 2.0})
    assert counts(result) == {"t": 2}
    # twice 6 + 6 + 4, and 8 + 8
    assert unmet(result) == 28 - 8


def test_nothing_is_launched_for_a_gang_that_fits_on_another_node_than_the_fullest() -> None:
    small = node_type("small", {"CPU": 2, "GPU": 4})
    large = node_type("large", {"CPU": 32, "GPU": 4}, max_workers=1)
    nodes = [
        ready("a", small, {"CPU": 2, "GPU": 4}),
        ready("b", small, {"CPU": 1, "GPU": 2}),
        ready("c", large, {"CPU": 8, "GPU": 1}),
    ]
    pending = demand(
        tasks(18, CPU=6, GPU=0.5),
        tasks(6, CPU=0.5, GPU=1),
        gangs=[gang(Strategy.STRICT_PACK, {"CPU": 1, "GPU": 0.5})],
    )
    result = planned_twice(spec(small, large), nodes, pending, {"small": 2.7, "large": 3.6})
    assert not result.launches
    assert unmet(result) == 17


def test_bundles_of_a_spread_gang_fit_beside_tasks() -> None:
    worker = node_type("w", {"CPU": 8})
    pending = demand(
        tasks(19, CPU=6),
        gangs=[
            gang(Strategy.STRICT_SPREAD, {"CPU": 1}, {"CPU": 1}, {"CPU": 1}),
            gang(Strategy.STRICT_SPREAD, {"CPU": 3}, {"CPU": 3}, {"CPU": 3}, count=2),
        ],
    )
    result = planned_twice(spec(worker), [], pending, {"w": 0.3})
    # Two bundles of 3 CPUs share a node; those of 1 CPU fit beside a task.
    assert counts(result) == {"w": 19 + 3}


@pytest.mark.parametrize("count", [9, 10])
def test_a_limited_cheap_type_goes_to_the_work_that_saves_most(count: int) -> None:
    """Only tasks of 6 CPUs waste a large node: the small nodes are for them."""
    large = node_type("large", {"CPU": 8})
    small = node_type("small", {"CPU": 6}, max_workers=count)
    types: list[NodeType] = [large, small]
    pending = demand(tasks(count, CPU=6), tasks(20, CPU=4))
    result = planned_twice(spec(*types), [], pending, {"large": 0.8, "small": 0.6})
    assert counts(result) == {"small": count, "large": 10}


def test_a_spread_gang_leaves_the_only_node_that_suits_another_gang() -> None:
    """The nodes of the floor have room for the spread gangs, but not the label for the other."""
    gpu = node_type("gpu", {"CPU": 4, "GPU": 1}, labels={"pool": "a"})
    cpu = node_type("cpu", {"CPU": 4})
    not_in_a = Shape.of({"CPU": 3}, [[LabelRule("pool", ("a",), negated=True)]])
    pending = demand(
        gangs=[
            Gang((Shape.of({"CPU": 0.5}), not_in_a), Strategy.PACK),
            gang(Strategy.STRICT_SPREAD, {"CPU": 3}, count=3),
        ],
        floors=[tasks(19, CPU=0.5, GPU=1)],
    )
    busy = ready("n", gpu)
    result = planned_twice(spec(gpu, cpu), [busy], pending, {"gpu": 1.0, "cpu": 0.2})
    assert counts(result) == {"gpu": 18, "cpu": 1}
    assert not result.unmet


def test_no_node_is_launched_that_meets_no_more_tasks() -> None:
    small = node_type("small", {"CPU": 2}, max_workers=2)
    gpu = node_type("gpu", {"CPU": 4, "GPU": 1}, max_workers=2)
    pending = demand(tasks(7, CPU=0.5), tasks(3, CPU=1, GPU=0.5), tasks(1, CPU=3, GPU=1))
    cluster = spec(small, gpu, max_workers=3)
    result = planned_twice(cluster, [], pending, {"small": 0.1, "gpu": 1.0})
    # There are GPUs for all but the last task, and CPUs beside them for the others.
    assert counts(result) == {"gpu": 2}
    assert unmet(result) == 1


def test_a_priority_does_not_keep_a_gang_from_being_met() -> None:
    first = node_type("first", {"CPU": 4}, max_workers=2, priority=1)
    other = node_type("other", {"CPU": 2}, max_workers=2)
    gangs = [
        gang(Strategy.PACK, {"CPU": 4}, count=2),
        gang(Strategy.STRICT_SPREAD, {"CPU": 0.5}, {"CPU": 0.5}),
    ]
    result = planned_twice(spec(first, other), [], demand(gangs=gangs), {})
    assert counts(result) == {"first": 2, "other": 2}
    assert not result.unmet


def test_initial_workers_are_complete_also_if_a_launch_for_a_floor_became_unnecessary() -> None:
    gpu = node_type("gpu", {"CPU": 2, "GPU": 1}, priority=1)
    cluster = spec(gpu, node_type("cpu", {"CPU": 2}), initial_workers=2)
    pending = demand(floors=[tasks(1, CPU=0.5, GPU=0.5)])
    assert counts(planned_twice(cluster, [], pending, {})) == {"gpu": 2}


def test_launches_for_work_count_towards_initial_workers() -> None:
    small, large = node_type("small", {"CPU": 2}), node_type("large", {"CPU": 4})
    cluster = spec(small, large, initial_workers=2)
    result = planned_twice(cluster, [], demand(tasks(1, CPU=3)), {})
    assert counts(result) == {"small": 1, "large": 1}


def test_what_fits_with_the_launches_is_not_reported_as_unmet() -> None:
    """The last packing must be as good as the one by which the launches were selected."""
    types = [
        node_type("small", {"CPU": 4}, min_workers=2, priority=1),
        node_type("medium", {"CPU": 8}, priority=1),
        node_type("large", {"CPU": 16}, min_workers=2),
    ]
    pending = demand(tasks(11, CPU=6), tasks(8, CPU=3), tasks(6, CPU=2))
    result = planned_twice(spec(*types), [], pending, {})
    assert not result.unmet


def test_a_launch_that_helps_takes_the_place_of_one_that_does_not() -> None:
    large = node_type("large", {"CPU": 8, "memory": 16, "GPU": 4}, max_workers=8)
    small = node_type("small", {"CPU": 2, "memory": 16, "GPU": 1}, max_workers=1)
    pending = demand(
        tasks(10, CPU=6, GPU=1, memory=8),
        tasks(17, CPU=1, memory=2),
        tasks(3, CPU=0.5, GPU=1, memory=8),
        gangs=[gang(Strategy.PACK, {"CPU": 0.5}, {"CPU": 0.5}, {"CPU": 1}, {"CPU": 1}, count=3)],
        floors=[tasks(2, CPU=0.5)],
    )
    prices = {"large": 2.704, "small": 0.724}
    result = planned_twice(spec(large, small, max_workers=6), [], pending, prices)
    assert counts(result) == {"large": 6}
    assert unmet(result) == 7


def test_what_initial_workers_no_longer_need_is_left_to_tasks_at_once() -> None:
    cheap = node_type("cheap", {"CPU": 8}, labels={"pool": "b"}, max_workers=5, priority=1)
    other = node_type("other", {"CPU": 4}, labels={"pool": "a"}, max_workers=5)
    cluster = spec(cheap, other, max_workers=4, initial_workers=3)
    in_a = Shape.of({"CPU": 2}, [[LabelRule("pool", ("a",))]])
    result = planned_twice(cluster, [], Demand((Request(in_a, 23),)), {"cheap": 0.1, "other": 0.1})
    assert counts(result) == {"other": 4}


def test_tasks_take_the_place_of_all_initial_workers_that_they_cannot_use() -> None:
    """The draining node counts against the limit, so that seven may be launched."""
    in_a = Shape.of({"CPU": 3}, [[LabelRule("pool", ("a",))]])
    costly = node_type("costly", {"CPU": 16}, labels={"pool": "a"})
    cheap = node_type("cheap", {"CPU": 16}, max_workers=5)
    cluster = spec(costly, cheap, max_workers=8, initial_workers=6)
    leaving = NodeView("n0", "costly", Phase.DRAINING, total=costly.resources)
    prices = {"costly": 1.0, "cheap": 0.5}
    result = planned_twice(cluster, [leaving], Demand((Request(in_a, 21),)), prices)
    assert counts(result) == {"costly": 5, "cheap": 1}


def test_one_more_node_is_launched_for_a_task_that_is_left_over_within_the_limits() -> None:
    in_a = [[LabelRule("pool", ("a",))]]
    not_in_a = [[LabelRule("pool", ("a",), negated=True)]]
    any_six = Shape.of({"CPU": 6})
    limited = node_type("limited", {"CPU": 16}, max_workers=2, labels={"pool": "a"})
    gpu = node_type("gpu", {"CPU": 8, "GPU": 4})
    pending = Demand(
        (Request(Shape.of({"CPU": 4}, in_a), 7), Request(Shape.of({"CPU": 3, "GPU": 1}), 14)),
        (
            Gang((any_six,), Strategy.PACK, 3),
            Gang((any_six, Shape.of({"CPU": 3}, not_in_a)), Strategy.PACK, 3),
        ),
    )
    result = planned_twice(spec(limited, gpu), [], pending, {"limited": 1.0, "gpu": 1.0})
    assert [row.subject for row in result.unmet if "GPU" in row.subject] == []


@pytest.mark.parametrize("priority", [0, 1])
def test_no_node_is_launched_whose_tasks_fit_beside_spread_gangs(priority: int) -> None:
    """Twelve nodes hold 20 tasks, three bundles of 4 and three of 2, if these are combined well."""
    in_a = Shape.of({"CPU": 2}, [[LabelRule("pool", ("a",))]])
    gpu = node_type("gpu", {"CPU": 4, "GPU": 1}, max_workers=5)
    cpu = node_type("cpu", {"CPU": 8}, labels={"pool": "a"}, priority=priority)
    bundles = (in_a, Shape.of({"CPU": 4}), Shape.of({"CPU": 4, "GPU": 0.5}))
    pending = Demand((tasks(20, CPU=3),), (Gang(bundles, Strategy.STRICT_SPREAD, 3),))
    result = planned_twice(spec(gpu, cpu), [], pending, {"cpu": 1.0})
    assert counts(result) == {"gpu": 3, "cpu": 12}
    assert not result.unmet
