"""Random clusters with limits, gangs, floors and labels, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks.planner_bench.clusters import HEAD, cluster, node
from shoal.scaling import (
    Demand,
    Gang,
    History,
    LabelRule,
    NodeView,
    Offering,
    Plan,
    Request,
    Shape,
    Strategy,
    plan,
)
from shoal.spec.cluster_spec import ClusterSpec

POOL = "pool"


@dataclass(frozen=True)
class Scenario:
    """One planning input. The prices are those of the offerings, by node type."""

    spec: ClusterSpec
    nodes: tuple[NodeView, ...]
    demand: Demand
    prices: dict[str, float]

    def plan(self) -> Plan:
        """Shoal's plan."""
        offerings = [Offering(name, price_per_hour=price) for name, price in self.prices.items()]
        return plan(self.spec, [HEAD, *self.nodes], self.demand, History(), 0.0, offerings)


def scenario(seed: int, *, max_count: int = 20) -> Scenario:
    """A cluster of up to four node types and six nodes, with work of up to `max_count` copies per
    shape."""
    rng = random.Random(seed)
    types: dict[str, dict[str, float]] = {}
    prices = {}
    for number in range(rng.randint(1, 4)):
        cpu, gpu = rng.choice([2, 4, 8, 16, 32]), rng.choice([0, 0, 0, 1, 2, 4])
        memory = cpu * rng.choice([2, 4, 8])
        types[f"t{number}"] = {"CPU": cpu, "memory": memory, **({"GPU": gpu} if gpu else {})}
        # Half of the price lists are proportional to size, as on AWS.
        uneven = rng.choice([1.0, rng.uniform(0.8, 1.3)])
        prices[f"t{number}"] = round((0.03 * cpu + 0.004 * memory + 0.6 * gpu) * uneven, 4)
    spec = cluster(types, max_workers=rng.choice([3, 6, 10, 100, 100]))
    node_types = {
        name: replace(
            node_type,
            labels=rng.choice([{}, {}, {POOL: "a"}, {POOL: "b"}]),
            max_workers=rng.choice([1, 3, 8, 100, 100]),
        )
        for name, node_type in spec.node_types.items()
        if name != "head"
    }
    spec = replace(spec, node_types={"head": spec.node_types["head"], **node_types})
    return Scenario(spec, tuple(_nodes(rng, spec)), _demand(rng, max_count), prices)


def _nodes(rng: random.Random, spec: ClusterSpec) -> Iterable[NodeView]:
    workers = [t for t in spec.node_types.values() if t.name != "head"]
    total = 0
    for node_type in workers:
        existing = rng.choice([0, 0, 1, 2])
        for number in range(min(existing, node_type.max_workers)):
            if total < spec.scaling.max_workers:
                total += 1
                share = rng.choice([0.0, 0.25, 0.5, 1.0])
                free = {k: float(int(v * share)) for k, v in node_type.resources.items()}
                view = node(f"{node_type.name}-{number}", node_type.name, node_type.resources, free)
                yield replace(view, labels=node_type.labels)


def _shape(rng: random.Random) -> Shape:
    need: dict[str, float] = {"CPU": rng.choice([0.5, 1, 1, 2, 3, 4, 6, 8])}
    if memory := rng.choice([0, 0, 0, 1, 2, 8, 16]):
        need["memory"] = memory
    if gpu := rng.choice([0, 0, 0, 0, 0.5, 1, 1, 2]):
        need["GPU"] = gpu
    rule = LabelRule(POOL, (rng.choice("ab"),), negated=rng.random() < 0.3)
    return Shape.of(need, [[rule]] if rng.random() < 0.2 else ())


def _demand(rng: random.Random, max_count: int) -> Demand:
    tasks = [
        Request(_shape(rng), rng.randint(1, max_count)) for _ in range(rng.choice([0, 1, 1, 2, 4]))
    ]
    gangs = [_gang(rng) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    floors = [Request(_shape(rng), rng.randint(1, 6)) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    return Demand(tuple(tasks), tuple(gangs), tuple(floors))


def _gang(rng: random.Random) -> Gang:
    bundles = (_shape(rng),) * rng.randint(1, 3)
    bundles += tuple(_shape(rng) for _ in range(rng.choice([0, 0, 1, 2])))
    strategy = rng.choice(list(Strategy))
    if strategy is Strategy.STRICT_PACK:
        # Ray merges such bundles into one request and drops their label selectors.
        bundles = tuple(Shape(b.resources) for b in bundles)
    return Gang(bundles, strategy, rng.choice([1, 1, 1, 2, 3]))


# Sizes that cost the same per CPU, as on AWS, with what is special about some of them.
_FAMILY = {
    "large": ({"CPU": 2.0, "memory": 8.0}, 0.096),
    "4xlarge": ({"CPU": 16.0, "memory": 64.0}, 0.768),
    "16xlarge": ({"CPU": 64.0, "memory": 256.0}, 3.072),
    "memory": ({"CPU": 8.0, "memory": 64.0}, 0.504),
    "gpu": ({"CPU": 8.0, "memory": 32.0, "GPU": 1.0}, 0.752),
    "gpus": ({"CPU": 32.0, "memory": 128.0, "GPU": 4.0}, 3.912),
    "disk": ({"CPU": 4.0, "memory": 16.0, "disk": 2.0}, 0.312),
}
_MARKET = "market"


def varied_scenario(seed: int) -> Scenario:
    """A cluster of up to five sizes of a family, some of them as spot and on-demand, with minimums,
    custom resources, launching nodes, and label selectors in order of preference."""
    rng = random.Random(seed)
    names = rng.sample(sorted(_FAMILY), rng.randint(1, 5))
    types, prices, labels = {}, {}, {}
    for name in names:
        resources, price = _FAMILY[name]
        for market in rng.choice([["on-demand"], ["on-demand"], ["on-demand", "spot"]]):
            types[f"{name}-{market}"] = resources
            prices[f"{name}-{market}"] = price if market == "on-demand" else round(price * 0.35, 4)
            labels[f"{name}-{market}"] = {_MARKET: market}
    limit = rng.choice([4, 12, 100, 100])
    spec = cluster(types, max_workers=limit)
    node_types = {
        name: replace(
            spec.node_types[name],
            labels=labels[name],
            max_workers=rng.choice([2, 5, 100, 100]),
            min_workers=rng.choice([0, 0, 0, 0, limit // 100]),
        )
        for name in types
    }
    spec = replace(spec, node_types={"head": spec.node_types["head"], **node_types})
    tasks = [
        Request(_varied_shape(rng), rng.choice([1, 2, 5, 20, 60]))
        for _ in range(rng.choice([0, 1, 2, 3]))
    ]
    gangs = [
        Gang(
            (_varied_shape(rng),) * rng.randint(1, 4) + (_varied_shape(rng),) * rng.randint(0, 2),
            rng.choice([Strategy.PACK, Strategy.SPREAD, Strategy.STRICT_SPREAD]),
            rng.choice([1, 1, 2, 5]),
        )
        for _ in range(rng.choice([0, 1, 1, 2]))
    ]
    floors = [
        Request(_varied_shape(rng), rng.choice([1, 4, 16])) for _ in range(rng.choice([0, 0, 1]))
    ]
    demand = Demand(tuple(tasks), tuple(gangs), tuple(floors))
    return Scenario(spec, tuple(_nodes(rng, spec)), demand, prices)


def _varied_shape(rng: random.Random) -> Shape:
    need: dict[str, float] = {"CPU": rng.choice([0.25, 1, 1, 2, 4, 12])}
    if rng.random() < 0.3:
        need["memory"] = rng.choice([1, 3, 10, 30])
    if rng.random() < 0.25:
        need[rng.choice(["GPU", "GPU", "disk"])] = rng.choice([0.5, 1, 1, 2])
    selectors: list[list[LabelRule]] = []
    if rng.random() < 0.2:
        selectors = [[LabelRule(_MARKET, (rng.choice(["on-demand", "spot"]),))]]
    return Shape.of(need, selectors)
