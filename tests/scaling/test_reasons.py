"""Every reason is true: what it blames is in the way, and every launch is needed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.scaling import (
    Cause,
    Demand,
    Gang,
    History,
    Offering,
    Plan,
    Request,
    Shape,
    Strategy,
    Unmet,
    plan,
)
from shoal.scaling.demand import LabelRule
from shoal.scaling.inputs import LaunchFailure
from shoal.scaling.scaling_plan import MINIMUM_SUBJECT
from shoal.spec.cluster_spec import ClusterSpec, NodeType
from tests.scaling.clusters import EXAMPLES, HEAD, carried_out, demand, gang, node_type, spec, tasks
from tests.scaling.test_properties import (
    Case,
    bounded,
    cases,
    demands,
    gangs,
    legacy_cases,
    planned,
    types,
)

# Each example plans many times.
few = settings(bounded, max_examples=EXAMPLES or 20)


def raised(cluster: ClusterSpec, row: Unmet) -> ClusterSpec:
    """The cluster with the limits raised that the reason of a row names."""
    numbers = row.reason.numbers
    types = {
        name: replace(t, max_workers=10_000) if f"max_workers {name}" in numbers else t
        for name, t in cluster.node_types.items()
    }
    scaling = cluster.scaling
    if "max_workers" in numbers:
        scaling = replace(scaling, max_workers=100_000)
    return replace(cluster, node_types=types, scaling=scaling)


def unmet_count(result: Plan, subject: str) -> int:
    return sum(row.count for row in result.unmet if row.subject == subject)


@few
@given(cases(), demands)
def test_raising_the_limit_that_a_row_blames_meets_it(case: Case, pending: Demand) -> None:
    cluster, nodes, offerings = case
    result = planned(case, pending)
    for row in result.unmet:
        if row.reason.cause is Cause.LIMIT:
            lifted = raised(cluster, row)
            assert lifted != cluster
            again = plan(lifted, nodes, pending, History(), 1000.0, offerings)
            assert not unmet_count(again, row.subject), row


@few
@given(cases(), demands, st.data())
def test_work_goes_when_the_failures_and_limits_that_it_blames_are_gone(
    case: Case, pending: Demand, data: st.DataObject
) -> None:
    cluster, nodes, offerings = case
    workers = [name for name in cluster.node_types if name != "head"]
    stopped = data.draw(st.lists(st.sampled_from(workers), unique=True), label="stopped")
    history = History()
    if data.draw(st.booleans(), label="is blocked"):
        history = History(blocked=dict.fromkeys(stopped, "setup failed"))
    else:
        for name in stopped:
            history = history.with_failure(LaunchFailure(name, 990.0))
    result = plan(cluster, nodes, pending, history, 1000.0, offerings)
    lifted_history = {
        Cause.LIMIT: history,
        Cause.CAPACITY: replace(history, failures=()),
        Cause.BLOCKED: History(),
    }
    for row in result.unmet:
        if after := lifted_history.get(row.reason.cause):
            again = plan(raised(cluster, row), nodes, pending, after, 1000.0, offerings)
            assert not unmet_count(again, row.subject), row


@few
@given(legacy_cases(), demands)
def test_nothing_is_deferred_without_the_speed_that_a_row_blames(
    case: Case, pending: Demand
) -> None:
    cluster, nodes, offerings = case
    result = planned(case, pending)
    for row in result.unmet:
        if row.reason.cause is Cause.SPEED:
            scaling = replace(cluster.scaling, upscaling_speed=1e6)
            shoal = replace(cluster.shoal, max_concurrent_launches=0)
            faster = replace(cluster, scaling=scaling, shoal=shoal)
            again = plan(faster, nodes, pending, History(), 1000.0, offerings)
            assert not unmet_count(again, row.subject)


@few
@given(cases(), demands)
def test_raising_every_limit_does_not_help_what_is_infeasible(case: Case, pending: Demand) -> None:
    cluster, nodes, offerings = case
    result = planned(case, pending)
    types = {
        name: replace(t, max_workers=10_000) if t.max_workers else t
        for name, t in cluster.node_types.items()
    }
    scaling = replace(cluster.scaling, max_workers=100_000)
    unlimited = replace(cluster, node_types=types, scaling=scaling)
    again = plan(unlimited, nodes, pending, History(), 1000.0, offerings)
    for row in result.unmet:
        if row.reason.cause in (Cause.INFEASIBLE, Cause.BUSY):
            assert unmet_count(again, row.subject) == unmet_count(result, row.subject)


@few
@given(cases(), demands)
def test_without_one_of_its_launches_a_plan_leaves_more_unmet(case: Case, pending: Demand) -> None:
    cluster, nodes, offerings = case
    cluster = replace(cluster, scaling=replace(cluster.scaling, upscaling_speed=1e6))
    result = plan(cluster, nodes, pending, History(), 1000.0, offerings)
    if not result.cancels and not result.drains:
        assert_each_launch_is_needed((cluster, nodes, offerings), pending, result)


@bounded
@given(types(), st.lists(gangs, min_size=1, max_size=3))
def test_no_launch_for_gangs_is_spare(node_types: list[NodeType], some: list[Gang]) -> None:
    cluster = spec(*(replace(t, min_workers=0) for t in node_types))
    pending = Demand(gangs=tuple(some))
    result = plan(cluster, [HEAD], pending, History(), 1000.0)
    assert_each_launch_is_needed((cluster, [HEAD], []), pending, result)


def assert_each_launch_is_needed(case: Case, pending: Demand, result: Plan) -> None:
    cluster, nodes, offerings = case
    after = carried_out(result, nodes)
    before = {n.id for n in nodes}
    for name in {n.node_type for n in after if n.id not in before}:
        node = next(n for n in after if n.id not in before and n.node_type == name)
        # No launches are allowed any more, so that a missing node shows as unmet.
        limited = {
            t.name: replace(
                t,
                max_workers=sum(n.node_type == t.name for n in after) - (t.name == name),
            )
            for t in cluster.node_types.values()
        }
        frozen = replace(cluster, node_types=limited)
        fewer = [n for n in after if n.id != node.id]
        without = plan(frozen, fewer, pending, History(), 1000.0, offerings)
        assert unmet_by_rank(without) > unmet_by_rank(result)


def unmet_by_rank(result: Plan) -> tuple[int, int, int, int]:
    """How much is unmet of minimums, floors, gangs and tasks, in the order in which they are
    served: a machine may serve one gang where it could have served several tasks. Nodes above a
    limit are no demand."""
    rows = [row for row in result.unmet if row.reason.cause is not Cause.OVER_LIMIT]
    prefixes = (MINIMUM_SUBJECT, "request_resources", "placement group")
    counts = [sum(u.count for u in rows if u.subject.startswith(p)) for p in prefixes]
    return counts[0], counts[1], counts[2], sum(u.count for u in rows) - sum(counts)


def test_a_minimum_that_waits_names_the_limit_that_another_minimum_will_reach() -> None:
    """Both types fail to launch; when that is over, the limit allows only the minimum of one."""
    cluster = spec(
        node_type("a", {"CPU": 1}, min_workers=2),
        node_type("b", {"CPU": 1}, min_workers=2),
        max_workers=3,
    )
    history = History()
    for name in ("a", "b"):
        history = history.with_failure(LaunchFailure(name, 990.0))
    first, second = plan(cluster, [HEAD], Demand(), history, 1000.0).unmet
    assert "max_workers" not in first.reason.numbers
    assert second.reason.cause is Cause.CAPACITY
    assert second.reason.numbers["max_workers"] == 3
    assert not plan(raised(cluster, second), [HEAD], Demand(), History(), 1000.0).unmet


def test_a_row_names_each_limit_that_it_shares_with_other_unmet_work() -> None:
    """Without the limit of the cluster, tasks for any node take the large nodes as well, because
    those for pool a need all nodes of that pool."""
    in_a = Shape.of({"CPU": 4}, [[LabelRule("pool", ("a",))]])
    not_in_a = Shape.of({"CPU": 6}, [[LabelRule("pool", ("a",), negated=True)]])
    cluster = spec(
        node_type("small", {"CPU": 4}, max_workers=5),
        node_type("large", {"CPU": 16}, max_workers=5),
        node_type("in_a", {"CPU": 8}, max_workers=2, labels={"pool": "a"}),
        max_workers=3,
    )
    offerings = [Offering("small", price_per_hour=1.0), Offering("large", price_per_hour=1.0)]
    pending = demand(tasks(24, CPU=4), Request(in_a, 4), Request(not_in_a, 1))
    result = plan(cluster, [HEAD], pending, History(), 0.0, offerings)
    row = next(row for row in result.unmet if row.subject == str(not_in_a))
    assert {"max_workers", "max_workers large"} <= set(row.reason.numbers)
    again = plan(raised(cluster, row), [HEAD], pending, History(), 0.0, offerings)
    assert not unmet_count(again, row.subject)


def test_work_that_waits_names_the_limit_that_other_work_will_reach() -> None:
    """Both node types fail to launch; when that is over, gangs take what max_workers allows."""
    shape = Shape.of({"CPU": 2}, [[LabelRule("pool", ("a",))]])
    in_a = node_type("a", {"CPU": 2}, labels={"pool": "a"})
    cluster = spec(in_a, node_type("b", {"CPU": 4, "disk": 1}), max_workers=2)
    history = History()
    for name in ("a", "b"):
        history = history.with_failure(LaunchFailure(name, 990.0))
    pending = demand(Request(shape, 1), gangs=[gang(Strategy.SPREAD, {"disk": 1}, count=2)])
    result = plan(cluster, [HEAD], pending, history, 1000.0)
    row = next(row for row in result.unmet if row.subject == str(shape))
    assert row.reason.cause is Cause.CAPACITY
    assert row.reason.numbers["max_workers"] == 2
    assert not plan(raised(cluster, row), [HEAD], pending, History(), 1000.0).unmet


def test_work_names_no_limit_that_only_work_on_other_nodes_has_reached() -> None:
    cluster = spec(
        node_type("cpu", {"CPU": 4}, max_workers=1),
        node_type("gpu", {"GPU": 1}, max_workers=2),
        max_workers=10,
    )
    result = plan(cluster, [HEAD], demand(tasks(2, CPU=4), tasks(9, GPU=1)), History(), 0.0)
    blamed = {row.subject: set(row.reason.numbers) for row in result.unmet}
    assert blamed == {"{CPU: 4}": {"max_workers cpu"}, "{GPU: 1}": {"max_workers gpu"}}
