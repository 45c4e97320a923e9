"""Properties of every plan: limits, whole gangs, order independence, reasons, stability."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st

from shoal.core.node_phase import Phase
from shoal.scaling import Demand, Gang, History, NodeView, Offering, Plan, Strategy, plan
from shoal.scaling.demand import LabelRule, Request, Shape
from shoal.spec.cluster_spec import ClusterSpec, NodeType
from tests.scaling.clusters import (
    EXAMPLES,
    HEAD,
    carried_out,
    counts,
    demand,
    node_type,
    ready,
    spec,
)

bounded = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    # A smaller example of a failure takes minutes to find; SHOAL_SHRINK=1 looks for one.
    phases=[
        phase
        for phase in HypothesisPhase
        if phase is not HypothesisPhase.shrink or not EXAMPLES or "SHOAL_SHRINK" in os.environ
    ],
)

amounts = st.sampled_from([0.5, 1, 2, 3, 4, 6])
RULES = [[], [[LabelRule("pool", ("a",))]], [[LabelRule("pool", ("a",), negated=True)]]]


@st.composite
def types(draw: st.DrawFn) -> list[NodeType]:
    result = []
    for number in range(draw(st.integers(1, 4))):
        resources = {"CPU": draw(st.sampled_from([2, 4, 8, 16]))}
        if draw(st.booleans()):
            resources["GPU"] = draw(st.sampled_from([1, 2, 4]))
        result.append(
            node_type(
                f"t{number}",
                resources,
                min_workers=draw(st.sampled_from([0, 0, 0, 1, 2])),
                max_workers=draw(st.sampled_from([2, 5, 100])),
                priority=draw(st.sampled_from([0, 0, 0, 1])),
                labels=draw(st.sampled_from([{}, {"pool": "a"}, {"pool": "b"}])),
            )
        )
    return result


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    resources = {"CPU": draw(amounts)}
    if draw(st.integers(0, 3)) == 0:
        resources["GPU"] = draw(st.sampled_from([0.5, 1, 2]))
    return Shape.of(resources, draw(st.sampled_from(RULES)))


requests = st.builds(Request, shapes(), st.integers(1, 30))
gangs = st.builds(
    Gang,
    st.lists(shapes(), min_size=1, max_size=4).map(tuple),
    st.sampled_from(list(Strategy)),
    st.integers(1, 3),
)
demands = st.builds(
    Demand,
    st.lists(requests, max_size=4).map(tuple),
    st.lists(gangs, max_size=2).map(tuple),
    st.lists(requests, max_size=1).map(tuple),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[ClusterSpec, list[NodeView], list[Offering]]:
    node_types = draw(types())
    cluster = spec(
        *node_types,
        max_workers=draw(st.sampled_from([3, 8, 200])),
        upscaling_speed=draw(st.sampled_from([0.5, 1e6])),
    )
    nodes = [HEAD]
    for number in range(draw(st.integers(0, 6))):
        worker = draw(st.sampled_from(node_types))
        phase = draw(st.sampled_from([Phase.READY, Phase.READY, Phase.BOOTING, Phase.DRAINING]))
        used = draw(st.sampled_from([0.0, 0.5, 1.0]))
        total = dict(worker.resources)
        nodes.append(
            NodeView(
                f"n{number}",
                worker.name,
                phase,
                total=total if phase is not Phase.BOOTING else {},
                available={k: v * (1 - used) for k, v in total.items()},
                labels=dict(worker.labels),
                idle_s=draw(st.sampled_from([0.0, 100.0, 500.0])) if used == 0.0 else 0.0,
            )
        )
    prices = [draw(st.sampled_from([None, 0.1, 0.5, 1.0, 3.0])) for _ in node_types]
    offerings = [
        Offering(k.name, price_per_hour=p) for k, p in zip(node_types, prices, strict=True)
    ]
    return cluster, nodes, offerings


Case = tuple[ClusterSpec, list[NodeView], list[Offering]]


@st.composite
def legacy_cases(draw: st.DrawFn) -> Case:
    """Cases with the settings of older cluster files, and a limit on concurrent launches."""
    cluster, nodes, offerings = draw(cases())
    scaling = replace(
        cluster.scaling,
        initial_workers=draw(st.sampled_from([None, 2, 6])),
        autoscaling_mode=draw(st.sampled_from([None, "default", "aggressive"])),
        target_utilization_fraction=draw(st.sampled_from([None, 0.5, 0.8, 1.0])),
    )
    shoal = replace(cluster.shoal, max_concurrent_launches=draw(st.sampled_from([0, 0, 3])))
    return replace(cluster, scaling=scaling, shoal=shoal), nodes, offerings


def planned(case: Case, pending: Demand) -> Plan:
    cluster, nodes, offerings = case
    return plan(cluster, nodes, pending, History(), 1000.0, offerings)


def counted(nodes: list[NodeView]) -> dict[str, int]:
    live = [n for n in nodes if not n.is_head and n.phase is not Phase.TERMINATING]
    return {name: sum(n.node_type == name for n in live) for name in {n.node_type for n in live}}


@bounded
@given(cases(), demands)
def test_limits_are_never_exceeded(case: Case, pending: Demand) -> None:
    cluster, nodes, _ = case
    result = planned(case, pending)
    before, launched = counted(nodes), counts(result)
    for name, more in launched.items():
        assert before.get(name, 0) + more <= cluster.node_types[name].max_workers
    if launched:
        assert sum(before.values()) + sum(launched.values()) <= cluster.scaling.max_workers


@bounded
@given(cases() | legacy_cases(), demands)
def test_a_plan_that_was_carried_out_is_followed_by_no_launches(
    case: Case, pending: Demand
) -> None:
    cluster, nodes, offerings = case
    first = planned(case, pending)
    # A node above a lowered limit leaves capacity for another one when it is cancelled.
    assume(not first.cancels)
    with_failure = carried_out(first, nodes)
    second = plan(cluster, with_failure, pending, first.history, 1001.0, offerings)
    assert not second.launches
    new = {n.id for n in with_failure} - {n.id for n in nodes}
    later = plan(cluster, with_failure, pending, second.history, 1100.0, offerings)
    assert not new & {c.node_id for c in later.cancels}


@bounded
@given(cases(), demands, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    case: Case, pending: Demand, rng: random.Random
) -> None:
    cluster, nodes, offerings = case

    def shuffled(things: object) -> list:  # type: ignore[type-arg]
        return rng.sample(list(things), len(list(things)))  # type: ignore

    other = Demand(
        tuple(shuffled(pending.requests)),
        tuple(
            Gang(tuple(shuffled(g.bundles)), g.strategy, g.count) for g in shuffled(pending.gangs)
        ),
        tuple(shuffled(pending.floors)),
    )
    mixed = plan(cluster, shuffled(nodes), other, History(), 1000.0, shuffled(offerings))
    assert mixed == planned(case, pending)


@bounded
@given(cases(), demands)
def test_every_decision_is_explained(case: Case, pending: Demand) -> None:
    result = planned(case, pending)
    decisions = (*result.launches, *result.drains, *result.cancels, *result.unmet)
    reasons = [decision.reason for decision in decisions]  # type: ignore[attr-defined]
    assert all(reason.text for reason in reasons)
    for launch in result.launches:
        assert launch.count > 0
        assert launch.reason.numbers
    missing = sum(u.count for u in result.unmet)
    assert missing == 0 or any(u.reason.text for u in result.unmet)


@st.composite
def demand_that_fits(draw: st.DrawFn) -> tuple[list[NodeType], list[NodeView], Demand]:
    """Free capacity cut at random into tasks that therefore fit."""
    worker = node_type("t0", {"CPU": 16, "GPU": 4})
    nodes, pieces = [HEAD], []
    for number in range(draw(st.integers(1, 5))):
        cpu, gpu = draw(st.integers(1, 16)), draw(st.integers(0, 4))
        nodes.append(NodeView(f"n{number}", "t0", Phase.READY, total=dict(worker.resources),
                              available={"CPU": cpu, "GPU": gpu}))  # fmt: skip
        while cpu > 0:
            some_cpu = draw(st.integers(1, cpu))
            some_gpu = draw(st.integers(0, gpu))
            pieces.append(Request(Shape.of({"CPU": some_cpu, "GPU": some_gpu}), 1))
            cpu, gpu = cpu - some_cpu, gpu - some_gpu
    return [worker], nodes, demand(*pieces)


@bounded
@given(demand_that_fits())
def test_demand_that_fits_on_existing_nodes_launches_nothing(
    case: tuple[list[NodeType], list[NodeView], Demand],
) -> None:
    node_types, nodes, pending = case
    result = plan(spec(*node_types), nodes, pending, History(), 0.0)
    assert not result.launches
    assert not result.unmet


@pytest.mark.parametrize("nodes", [10, 30, 60])
def test_demand_that_fits_on_many_nodes_launches_nothing(nodes: int) -> None:
    """Not a CPU is left over."""
    worker = node_type("t0", {"CPU": 16, "GPU": 4})
    for seed in range(EXAMPLES or 100):
        views, pieces = free_capacity_in_pieces(random.Random(seed), worker, nodes)
        result = plan(spec(worker), views, demand(*pieces), History(), 0.0)
        assert not result.launches, seed
        assert not result.unmet, seed


def free_capacity_in_pieces(
    rng: random.Random, worker: NodeType, nodes: int
) -> tuple[list[NodeView], list[Request]]:
    """Nodes, and tasks that fit on them exactly."""
    views, pieces = [HEAD], []
    for number in range(nodes):
        cpu, gpu = rng.randint(1, 16), rng.randint(0, 4)
        views.append(ready(f"n{number}", worker, {"CPU": cpu, "GPU": gpu}))
        while cpu:
            some_cpu, some_gpu = rng.randint(1, cpu), rng.randint(0, gpu)
            pieces.append(Request(Shape.of({"CPU": some_cpu, "GPU": some_gpu}), 1))
            cpu, gpu = cpu - some_cpu, gpu - some_gpu
    return views, pieces


@bounded
@given(st.integers(1, 5), st.randoms(use_true_random=False))
def test_pack_and_spread_gangs_that_fit_together_do_not_block_each_other(
    nodes: int, rng: random.Random
) -> None:
    """The bundles of all gangs are the capacity of as many nodes as the limit allows."""
    worker = node_type("t0", {"CPU": 16, "GPU": 4}, max_workers=nodes)
    _, pieces = free_capacity_in_pieces(rng, worker, nodes)
    bundles = [piece.shape for piece in pieces]
    rng.shuffle(bundles)
    pending = []
    while bundles:
        size = rng.randint(1, len(bundles))
        strategy = rng.choice([Strategy.PACK, Strategy.SPREAD])
        pending.append(Gang(tuple(bundles[:size]), strategy))
        bundles = bundles[size:]
    result = plan(spec(worker), [HEAD], Demand(gangs=tuple(pending)), History(), 0.0)
    assert not result.unmet


@bounded
@given(cases(), demands, st.lists(requests, max_size=3), st.lists(gangs, max_size=2))
def test_more_demand_never_removes_more_nodes(
    case: Case, pending: Demand, more: list[Request], more_gangs: list[Gang]
) -> None:
    larger = Demand((*pending.requests, *more), (*pending.gangs, *more_gangs), pending.floors)
    before, with_failure = planned(case, pending), planned(case, larger)
    assert {d.node_id for d in with_failure.drains} <= {d.node_id for d in before.drains}
    assert {c.node_id for c in with_failure.cancels} <= {c.node_id for c in before.cancels}


@bounded
@given(types(), st.lists(requests, max_size=3), st.lists(requests, min_size=1, max_size=2))
def test_more_demand_never_costs_less(
    node_types: list[NodeType], some: list[Request], more: list[Request]
) -> None:
    plain = [node_type(k.name, k.resources) for k in node_types]
    offerings = [
        Offering(k.name, price_per_hour=p) for k, p in zip(plain, (1, 1.7, 2.9, 4.3), strict=False)
    ]
    cluster = spec(*plain)

    def price(*pending: Request) -> float:
        return plan(cluster, [HEAD], demand(*pending), History(), 0.0, offerings).price_per_hour

    assert price(*some, *more) >= price(*some) - 1e-9


@bounded
@given(cases(), demands)
def test_a_gang_is_whole_or_absent(case: Case, pending: Demand) -> None:
    """With only gangs and an empty cluster, the launched nodes hold exactly the gangs that are not
    reported as unmet."""
    cluster, _, offerings = case
    free = spec(*(node_type(t.name, t.resources, max_workers=t.max_workers, labels=t.labels)
                  for t in cluster.node_types.values() if t.name != "head"),
                max_workers=cluster.scaling.max_workers)  # fmt: skip
    only = Demand(gangs=pending.gangs)
    result = plan(free, [HEAD], only, History(), 0.0, offerings)
    waiting = {u.subject: u.count for u in result.unmet}
    asked: dict[str, int] = {}
    for gang in only.gangs:
        name = str(Gang(tuple(sorted(gang.bundles)), gang.strategy))
        asked[name] = asked.get(name, 0) + gang.count
    starting = sum(asked.values()) - sum(waiting.values())
    assert all(0 < waiting[name] <= asked[name] for name in waiting)
    launched = [n for n in carried_out(result, [HEAD]) if not n.is_head]
    assert bool(launched) == (starting > 0)
    assert _holds_gangs(free, launched, only, waiting)


def _holds_gangs(
    cluster: ClusterSpec, nodes: list[NodeView], only: Demand, waiting: dict[str, int]
) -> bool:
    """Whether the gangs that start fit whole on these nodes; exhaustive, small cases only."""
    left = dict(waiting)
    bundles: list[tuple[int, Strategy, Shape]] = []
    number = 0
    for gang in only.gangs:
        name = str(Gang(tuple(sorted(gang.bundles)), gang.strategy))
        for _ in range(gang.count):
            if left.get(name, 0):
                left[name] -= 1
                continue
            number += 1
            bundles += [(number, gang.strategy, b) for b in gang.bundles]
    if len(bundles) > 6 or len(nodes) > 6:
        return True
    return any(_fits(cluster, nodes, bundles, where) for where in itertools.product(
        range(len(nodes)), repeat=len(bundles)))  # fmt: skip


def _fits(
    cluster: ClusterSpec,
    nodes: list[NodeView],
    bundles: list[tuple[int, Strategy, Shape]],
    where: tuple[int, ...],
) -> bool:
    free = [dict(cluster.node_types[n.node_type].resources) for n in nodes]
    places: dict[int, list[int]] = {}
    for (number, _, shape), node in zip(bundles, where, strict=True):
        places.setdefault(number, []).append(node)
        if not shape.matches(cluster.node_types[nodes[node].node_type].labels):
            return False
        for name, amount in shape.resources:
            free[node][name] = free[node].get(name, 0.0) - amount
            if free[node][name] < 0:
                return False
    for number, strategy, _ in bundles:
        used = places[number]
        if strategy is Strategy.STRICT_PACK and len(set(used)) > 1:
            return False
        if strategy is Strategy.STRICT_SPREAD and len(set(used)) < len(used):
            return False
    return True
