"""Invalid or absurdly large input is rejected or bounded."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from shoal.core.errors import ConfigError
from shoal.scaling import Cause, Gang, History, LabelRule, Offering, Request, Shape, Strategy, plan
from tests.scaling.clusters import (
    C4,
    C16,
    HEAD,
    OFFERINGS,
    counts,
    demand,
    gang,
    node_type,
    ready,
    spec,
    tasks,
)

# Far more than any machine needs, far less than a hang.
MAX_SECONDS = 30.0


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf, -math.inf])
def test_invalid_amounts_are_rejected(amount: float) -> None:
    with pytest.raises(ConfigError):
        Shape.of({"CPU": amount})


def test_negative_counts_are_rejected() -> None:
    with pytest.raises(ConfigError):
        Request(Shape.of({"CPU": 1}), -1)
    with pytest.raises(ConfigError):
        Gang((Shape.of({"CPU": 1}),), Strategy.PACK, -1)


def test_an_absurd_count_is_bounded_by_the_limits() -> None:
    result = plan(spec(C4, max_workers=50), [HEAD], demand(tasks(10**15, CPU=1)), History(), 0.0)
    assert counts(result) == {"c4": 50}
    assert result.unmet[0].count == 10**15 - 200


def test_an_absurd_amount_is_reported_as_infeasible() -> None:
    (unmet,) = plan(spec(C4), [HEAD], demand(tasks(1, CPU=1e18)), History(), 0.0).unmet
    assert unmet.reason.cause is Cause.INFEASIBLE


def test_amounts_below_a_ten_thousandth_still_use_capacity() -> None:
    result = plan(spec(C4), [HEAD], demand(tasks(50_000, CPU=1e-9)), History(), 0.0)
    assert counts(result) == {"c4": 2}


def test_a_type_without_resources_is_never_launched() -> None:
    empty = node_type("empty", {})
    offerings = [Offering("empty", price_per_hour=0.0001)]
    result = plan(spec(empty, C4), [HEAD], demand(tasks(4, CPU=1)), History(), 0.0, offerings)
    assert counts(result) == {"c4": 1}


def test_tasks_that_need_nothing_launch_nothing() -> None:
    assert plan(spec(C4), [HEAD], demand(Request(Shape.of({}), 100)), History(), 0.0).is_empty


def test_an_empty_gang_launches_nothing() -> None:
    pending = demand(gangs=[Gang((), Strategy.STRICT_SPREAD)])
    assert plan(spec(C4), [HEAD], pending, History(), 0.0).is_empty


def test_a_cluster_without_worker_types_says_so() -> None:
    (unmet,) = plan(spec(), [HEAD], demand(tasks(1, CPU=1)), History(), 0.0).unmet
    assert "no node type allows workers" in unmet.reason.text


@pytest.mark.long
def test_a_hundred_thousand_distinct_shapes_are_planned_in_bounded_time() -> None:
    many = [tasks(1, CPU=1 + i / 50_000) for i in range(100_000)]
    began = time.monotonic()
    result = plan(
        spec(C4, C16, max_workers=10**6), [HEAD], demand(*many), History(), 0.0, OFFERINGS
    )
    assert time.monotonic() - began < MAX_SECONDS
    cpus = sum({"c4": 4, "c16": 16}[name] * n for name, n in counts(result).items())
    assert cpus >= sum(r.count * dict(r.shape.resources)["CPU"] for r in many)


def test_a_hundred_thousand_unknown_resources_are_counted_not_listed() -> None:
    many = [tasks(1, **{f"custom{i}": 1}) for i in range(100_000)]
    began = time.monotonic()
    result = plan(spec(C4), [HEAD], demand(*many), History(), 0.0)
    assert time.monotonic() - began < MAX_SECONDS
    assert len(result.unmet) == 101
    assert result.unmet[-1].count == 100_000 - 100


def test_a_thousand_distinct_gangs_are_planned_in_bounded_time() -> None:
    gangs = [gang(Strategy.PACK, *[{"CPU": 0.5 + i / 1000}] * 3) for i in range(1000)]
    began = time.monotonic()
    assert plan(spec(C4, C16), [HEAD], demand(gangs=gangs), History(), 0.0, OFFERINGS).launches
    assert time.monotonic() - began < MAX_SECONDS


def test_shapes_beyond_the_limit_are_counted() -> None:
    selectors = [[[LabelRule("pool", (str(i),), negated=True)]] for i in range(1_500)]
    many = [Request(Shape.of({"CPU": 1}, s)) for s in selectors]
    result = plan(spec(C4), [HEAD], demand(*many), History(), 0.0)
    assert [u.count for u in result.unmet] == [500]
    assert counts(result) == {"c4": 250}


def test_shapes_that_fit_nowhere_are_counted() -> None:
    selectors = [[[LabelRule("pool", (str(i),))]] for i in range(1_500)]
    many = [Request(Shape.of({"CPU": 1}, s)) for s in selectors]
    result = plan(spec(C4), [HEAD], demand(*many), History(), 0.0)
    assert len(result.unmet) == 101
    assert sum(u.count for u in result.unmet) == 1_500
    assert {u.reason.cause for u in result.unmet} == {Cause.INFEASIBLE}


def test_free_nodes_are_packed_like_others() -> None:
    free = [replace(ready(f"n{i}", C4, idle_s=1), price_per_hour=0.0) for i in range(20)]
    pending = demand(*(tasks(7, CPU=n) for n in (1, 2, 3)))
    assert not plan(spec(C4), [HEAD, *free], pending, History(), 0.0, OFFERINGS).launches
