"""Small cases against the optimal cost, found by exhaustive search."""

from __future__ import annotations

import itertools
import random

import pytest

from shoal.core.node_phase import Phase
from shoal.scaling import History, NodeView, Offering, Request, plan
from shoal.scaling.demand import Shape
from tests.scaling.clusters import HEAD, demand, node_type, spec

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


@pytest.mark.parametrize("seed", range(40))
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
