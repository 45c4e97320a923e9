"""Small cases against the optimal cost, found by exhaustive search."""

from __future__ import annotations

import itertools
import random

import pytest

from shoal.core.node_phase import Phase
from shoal.scaling import Demand, Gang, History, NodeView, Offering, Request, Strategy, plan
from shoal.scaling.demand import Shape
from tests.scaling.clusters import EXAMPLES, HEAD, demand, node_type, spec

InstanceType = tuple[dict[str, float], float]
Bins = list[dict[str, float]]


def packs(needs: list[dict[str, float]], bins: Bins) -> bool:
    """Whether the needs fit in the bins, by trying every bin for each."""
    if not needs:
        return True
    need, others = needs[0], needs[1:]
    tried: list[dict[str, float]] = []
    for bin_ in bins:
        if bin_ in tried or any(bin_.get(k, 0) < v for k, v in need.items()):
            continue
        tried.append(dict(bin_))
        for k, v in need.items():
            bin_[k] -= v
        is_packed = packs(others, bins)
        for k, v in need.items():
            bin_[k] += v
        if is_packed:
            return True
    return False


def cheapest(
    needs: list[dict[str, float]], instance_types: list[InstanceType], existing: Bins
) -> float:
    """The lowest cost, by trying every set of up to six instances."""
    needs = sorted(needs, key=lambda n: sorted(n.values(), reverse=True), reverse=True)
    best = float("inf")
    for size in range(7):
        for chosen in itertools.combinations_with_replacement(instance_types, size):
            cost = sum(price for _, price in chosen)
            bins = [dict(b) for b in existing] + [dict(r) for r, _ in chosen]
            if cost < best - 1e-9 and packs(needs, bins):
                best = cost
    return best


@pytest.mark.parametrize("seed", range(EXAMPLES or 40))
def test_a_small_case_is_solved_at_the_optimal_cost(seed: int) -> None:
    r = random.Random(seed)
    instance_types: list[InstanceType] = []
    for _ in range(r.randint(2, 3)):
        cpu, gpu = r.choice([2, 4, 8, 16]), r.choice([0, 0, 1, 2])
        instance_types.append(
            ({"CPU": cpu, "GPU": gpu}, round(cpu * r.uniform(0.8, 1.2) + gpu * 10, 2))
        )
    largest_cpu = max(m["CPU"] for m, _ in instance_types)
    needs = [{"CPU": r.choice([1.0, 2, 3, 4])} for _ in range(r.randint(1, 6))]
    needs = [n for n in needs if n["CPU"] <= largest_cpu]
    if any(m["GPU"] for m, _ in instance_types):
        needs.append({"CPU": 1, "GPU": 1})
    existing = [{"CPU": float(r.randint(1, 4)), "GPU": 0.0} for _ in range(r.randint(0, 2))]

    node_types = [node_type(f"t{i}", m) for i, (m, _) in enumerate(instance_types)]
    offerings = [
        Offering(k.name, price_per_hour=p)
        for k, (_, p) in zip(node_types, instance_types, strict=True)
    ]
    old = node_type("old", {"CPU": 4}, max_workers=5)
    nodes = [
        NodeView(f"n{i}", "old", Phase.READY, total={"CPU": 4}, available=b, price_per_hour=0.0)
        for i, b in enumerate(existing)
    ]
    expensive = [Offering("old", price_per_hour=1e6)]
    pending = demand(*(Request(Shape.of(n)) for n in needs))
    result = plan(
        spec(*node_types, old), [HEAD, *nodes], pending, History(), 0.0, [*offerings, *expensive]
    )
    spent = sum(x.count * (x.price_per_hour or 0.0) for x in result.launches)
    assert spent == pytest.approx(cheapest(needs, instance_types, existing))


# Every placement of a gang's bundles on nodes: (bundle, number of its STRICT_SPREAD gang or 0).
Work = list[tuple[dict[str, float], int]]


def holds(work: Work, bins: Bins, gangs: list[set[int]] | None = None) -> bool:
    """Whether the work fits in the bins, with the bundles of a spread gang on different ones."""
    if not work:
        return True
    gangs = gangs or [set() for _ in bins]
    (need, gang), others = work[0], work[1:]
    tried: list[tuple[dict[str, float], set[int]]] = []
    for bin_, in_bin in zip(bins, gangs, strict=True):
        if (bin_, in_bin) in tried or gang in in_bin:
            continue
        if any(bin_.get(k, 0) < v for k, v in need.items()):
            continue
        tried.append((dict(bin_), set(in_bin)))
        for k, v in need.items():
            bin_[k] -= v
        if gang:
            in_bin.add(gang)
        is_held = holds(others, bins, gangs)
        in_bin.discard(gang)
        for k, v in need.items():
            bin_[k] += v
        if is_held:
            return True
    return False


@pytest.mark.parametrize("seed", range(EXAMPLES or 40))
def test_gangs_floors_and_limits_are_met_at_the_optimal_cost(seed: int) -> None:
    """And at that cost with the fewest instances. If the limits do not allow all, something is
    unmet."""
    r = random.Random(seed)
    sizes = [
        (
            {"CPU": float(r.choice([2, 4, 8])), "GPU": float(r.choice([0, 0, 1, 2]))},
            r.choice([1, 2, 5]),
        )
        for _ in range(r.randint(1, 3))
    ]
    prices = [
        round(m["CPU"] * r.choice([1.0, r.uniform(0.8, 1.2)]) + m["GPU"] * 10, 2) for m, _ in sizes
    ]
    limit = r.choice([2, 4, 5])

    def need() -> dict[str, float]:
        gpu = {"GPU": 1.0} if r.random() < 0.2 else {}
        return {"CPU": float(r.choice([1, 2, 3])), **gpu}

    tasks = [need() for _ in range(r.randint(0, 4))]
    floors = [need() for _ in range(r.choice([0, 0, 1, 2]))]
    gangs = [
        (r.choice(list(Strategy)), [need() for _ in range(r.randint(1, 3))])
        for _ in range(r.choice([0, 1, 1, 2]))
    ]
    work: Work = [(n, 0) for n in tasks]
    for number, (strategy, bundles) in enumerate(gangs, 1):
        if strategy is Strategy.STRICT_PACK:
            work.append(({k: sum(b.get(k, 0.0) for b in bundles) for k in ("CPU", "GPU")}, 0))
        else:
            spread = number if strategy is Strategy.STRICT_SPREAD else 0
            work += [(b, spread) for b in bundles]
    best: tuple[float, int] | None = None
    for counts in itertools.product(*(range(n + 1) for _, n in sizes)):
        if sum(counts) <= limit:
            bins = [m for (m, _), n in zip(sizes, counts, strict=True) for _ in range(n)]
            cost = round(sum(p * n for p, n in zip(prices, counts, strict=True)), 6)
            if best is None or (cost, sum(counts)) < best:
                ordered = sorted(work, key=lambda w: -sum(w[0].values()))
                if holds([(f, 0) for f in floors], [dict(b) for b in bins]) and holds(
                    ordered, [dict(b) for b in bins]
                ):
                    best = (cost, sum(counts))
    node_types = [node_type(f"t{i}", m, max_workers=n) for i, (m, n) in enumerate(sizes)]
    offerings = [Offering(f"t{i}", price_per_hour=p) for i, p in enumerate(prices)]
    pending = Demand(
        tuple(Request(Shape.of(n)) for n in tasks),
        tuple(Gang(tuple(map(Shape.of, bundles)), strategy) for strategy, bundles in gangs),
        tuple(Request(Shape.of(n)) for n in floors),
    )
    result = plan(spec(*node_types, max_workers=limit), [HEAD], pending, History(), 0.0, offerings)
    if best is None:
        assert result.unmet
    else:
        assert not result.unmet
        assert round(result.price_per_hour, 6) == pytest.approx(best[0])
        assert sum(x.count for x in result.launches) == best[1]
