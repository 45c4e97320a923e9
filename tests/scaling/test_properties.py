"""What holds for every input: limits, wholeness, order, explanations, and standing still."""

from __future__ import annotations

import itertools
import os

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from shoal.core.node_phase import Phase
from shoal.scaling import Demand, Gang, History, NodeView, Offering, Plan, Strategy, plan
from shoal.scaling.demand import LabelRule, Request, Shape
from shoal.spec.cluster_spec import ClusterSpec, NodeType
from tests.scaling.clusters import HEAD, carried_out, counts, demand, node_type, spec

# The same examples every time, so that a change is judged by what it changed. A longer and
# random search is for when the packing itself is touched: SHOAL_EXAMPLES=1000 pytest ...
EXAMPLES = int(os.environ.get("SHOAL_EXAMPLES", "0"))
bounded = settings(
    max_examples=EXAMPLES or 60,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
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
                least=draw(st.sampled_from([0, 0, 0, 1, 2])),
                most=draw(st.sampled_from([2, 5, 100])),
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
def worlds(draw: st.DrawFn) -> tuple[ClusterSpec, list[NodeView], list[Offering]]:
    kinds = draw(types())
    cluster = spec(
        *kinds,
        max_workers=draw(st.sampled_from([3, 8, 200])),
        upscaling_speed=draw(st.sampled_from([0.5, 1e6])),
    )
    nodes = [HEAD]
    for number in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(kinds))
        phase = draw(st.sampled_from([Phase.READY, Phase.READY, Phase.BOOTING, Phase.DRAINING]))
        used = draw(st.sampled_from([0.0, 0.5, 1.0]))
        total = dict(kind.resources)
        nodes.append(
            NodeView(
                f"n{number}",
                kind.name,
                phase,
                total=total if phase is not Phase.BOOTING else {},
                available={k: v * (1 - used) for k, v in total.items()},
                labels=dict(kind.labels),
                idle_s=draw(st.sampled_from([0.0, 100.0, 500.0])) if used == 0.0 else 0.0,
            )
        )
    prices = [draw(st.sampled_from([None, 0.1, 0.5, 1.0, 3.0])) for _ in kinds]
    offers = [Offering(k.name, price_per_hour=p) for k, p in zip(kinds, prices, strict=True)]
    return cluster, nodes, offers


World = tuple[ClusterSpec, list[NodeView], list[Offering]]


def planned(world: World, wanted: Demand) -> Plan:
    cluster, nodes, offers = world
    return plan(cluster, nodes, wanted, History(), 1000.0, offers)


def counted(nodes: list[NodeView]) -> dict[str, int]:
    live = [n for n in nodes if not n.is_head and n.phase is not Phase.TERMINATING]
    return {name: sum(n.node_type == name for n in live) for name in {n.node_type for n in live}}


@bounded
@given(worlds(), demands)
def test_limits_are_never_broken(world: World, wanted: Demand) -> None:
    cluster, nodes, _ = world
    result = planned(world, wanted)
    before, bought = counted(nodes), counts(result)
    for name, more in bought.items():
        assert before.get(name, 0) + more <= cluster.node_types[name].max_workers
    if bought:
        assert sum(before.values()) + sum(bought.values()) <= cluster.scaling.max_workers


@bounded
@given(worlds(), demands)
def test_a_plan_that_was_carried_out_asks_for_nothing_more(world: World, wanted: Demand) -> None:
    cluster, nodes, offers = world
    first = planned(world, wanted)
    # A machine beyond a lowered limit makes room for another one by going.
    assume(not first.cancels)
    after = carried_out(first, nodes)
    second = plan(cluster, after, wanted, first.history, 1001.0, offers)
    assert not second.launches
    new = {n.id for n in after} - {n.id for n in nodes}
    later = plan(cluster, after, wanted, second.history, 1100.0, offers)
    assert not new & {c.node_id for c in later.cancels}


@bounded
@given(worlds(), demands, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_show(world: World, wanted: Demand, random: object) -> None:
    cluster, nodes, offers = world

    def shuffled(things: object) -> list:  # type: ignore[type-arg]
        return random.sample(list(things), len(list(things)))  # type: ignore

    other = Demand(
        tuple(shuffled(wanted.requests)),
        tuple(
            Gang(tuple(shuffled(g.bundles)), g.strategy, g.count) for g in shuffled(wanted.gangs)
        ),
        tuple(shuffled(wanted.floors)),
    )
    mixed = plan(cluster, shuffled(nodes), other, History(), 1000.0, shuffled(offers))
    assert mixed == planned(world, wanted)


@bounded
@given(worlds(), demands)
def test_every_decision_is_explained(world: World, wanted: Demand) -> None:
    result = planned(world, wanted)
    decisions = (*result.launches, *result.drains, *result.cancels, *result.unmet)
    reasons = [decision.reason for decision in decisions]  # type: ignore[attr-defined]
    assert all(reason.text for reason in reasons)
    for launch in result.launches:
        assert launch.count > 0
        assert launch.reason.numbers
    missing = sum(u.count for u in result.unmet)
    assert missing == 0 or any(u.reason.text for u in result.unmet)


@st.composite
def carved(draw: st.DrawFn) -> tuple[list[NodeType], list[NodeView], Demand]:
    """Free room cut up at random into tasks that therefore fit in it."""
    kind = node_type("t0", {"CPU": 16, "GPU": 4})
    nodes, pieces = [HEAD], []
    for number in range(draw(st.integers(1, 5))):
        cpu, gpu = draw(st.integers(1, 16)), draw(st.integers(0, 4))
        nodes.append(NodeView(f"n{number}", "t0", Phase.READY, total=dict(kind.resources),
                              available={"CPU": cpu, "GPU": gpu}))  # fmt: skip
        while cpu > 0:
            some_cpu = draw(st.integers(1, cpu))
            some_gpu = draw(st.integers(0, gpu))
            pieces.append(Request(Shape.of({"CPU": some_cpu, "GPU": some_gpu}), 1))
            cpu, gpu = cpu - some_cpu, gpu - some_gpu
    return [kind], nodes, demand(*pieces)


@bounded
@given(carved())
def test_demand_that_fits_on_existing_nodes_launches_nothing(
    world: tuple[list[NodeType], list[NodeView], Demand],
) -> None:
    kinds, nodes, wanted = world
    result = plan(spec(*kinds), nodes, wanted, History(), 0.0)
    assert not result.launches
    assert not result.unmet


@bounded
@given(worlds(), demands, st.lists(requests, max_size=3), st.lists(gangs, max_size=2))
def test_more_demand_never_gives_up_more_nodes(
    world: World, wanted: Demand, more: list[Request], more_gangs: list[Gang]
) -> None:
    larger = Demand((*wanted.requests, *more), (*wanted.gangs, *more_gangs), wanted.floors)
    before, after = planned(world, wanted), planned(world, larger)
    assert {d.node_id for d in after.drains} <= {d.node_id for d in before.drains}
    assert {c.node_id for c in after.cancels} <= {c.node_id for c in before.cancels}


@bounded
@given(types(), st.lists(requests, max_size=3), st.lists(requests, min_size=1, max_size=2))
def test_more_demand_never_costs_less(
    kinds: list[NodeType], some: list[Request], more: list[Request]
) -> None:
    plain = [node_type(k.name, k.resources) for k in kinds]
    offers = [
        Offering(k.name, price_per_hour=p) for k, p in zip(plain, (1, 1.7, 2.9, 4.3), strict=False)
    ]
    cluster = spec(*plain)

    def price(*wanted: Request) -> float:
        return plan(cluster, [HEAD], demand(*wanted), History(), 0.0, offers).price_per_hour

    assert price(*some, *more) >= price(*some) - 1e-9


@bounded
@given(worlds(), demands)
def test_a_gang_is_whole_or_absent(world: World, wanted: Demand) -> None:
    """With nothing but gangs to serve and an empty cluster, every machine that is bought is
    needed: leaving out any of them breaks a gang that was to start."""
    cluster, _, offers = world
    free = spec(*(node_type(t.name, t.resources, most=t.max_workers, labels=t.labels)
                  for t in cluster.node_types.values() if t.name != "head"),
                max_workers=cluster.scaling.max_workers)  # fmt: skip
    only = Demand(gangs=wanted.gangs)
    result = plan(free, [HEAD], only, History(), 0.0, offers)
    waiting = {u.subject: u.count for u in result.unmet}
    asked: dict[str, int] = {}
    for gang in only.gangs:
        name = str(Gang(tuple(sorted(gang.bundles)), gang.strategy))
        asked[name] = asked.get(name, 0) + gang.count
    starting = sum(asked.values()) - sum(waiting.values())
    assert all(0 < waiting[name] <= asked[name] for name in waiting)
    bought = [n for n in carried_out(result, [HEAD]) if not n.is_head]
    assert bool(bought) == (starting > 0)
    assert _holds_gangs(free, bought, only, waiting)


def _holds_gangs(
    cluster: ClusterSpec, nodes: list[NodeView], only: Demand, waiting: dict[str, int]
) -> bool:
    """By exhaustion where it is small: the gangs that start fit whole on what was bought."""
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
        if not shape.admits(cluster.node_types[nodes[node].node_type].labels):
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
