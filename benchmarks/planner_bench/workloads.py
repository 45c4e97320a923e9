"""Random workloads of a realistic kind, the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

Resources = dict[str, float]


@dataclass(frozen=True)
class Workload:
    """Instance types with prices, and tasks that each fit on at least one of them."""

    instance_types: dict[str, tuple[Resources, float]]
    demand: list[tuple[Resources, int]]


def workload(seed: int) -> Workload:
    """Every third one is small enough for exhaustive search; the others need tens of nodes."""
    rng = random.Random(seed)
    small = seed % 3 == 0
    instance_types: dict[str, tuple[Resources, float]] = {}
    for number in range(rng.randint(3, 5) if small else rng.randint(3, 8)):
        cpu = rng.choice([2, 4, 8, 16, 32, 48, 64, 96])
        memory = cpu * rng.choice([2, 4, 8])
        gpu = rng.choice([0, 0, 0, 1, 1, 2, 4, 8]) if cpu >= 4 else 0
        # About what clouds charge, with the unevenness of real price lists.
        price = (0.03 * cpu + 0.004 * memory + 0.6 * gpu) * rng.uniform(0.8, 1.3)
        resources: Resources = {"CPU": cpu, "memory": memory}
        if gpu:
            resources["GPU"] = gpu
        instance_types[f"m{number}"] = (resources, round(price, 4))
    demand: list[tuple[Resources, int]] = []
    while not demand:
        for _ in range(rng.randint(1, 4) if small else rng.randint(1, 10)):
            need: Resources = {"CPU": rng.choice([0.5, 1, 1, 2, 3, 4, 6, 8])}
            if memory := rng.choice([0, 0, 1, 2, 4, 7, 16]):
                need["memory"] = memory
            if gpus := rng.choice([0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0]):
                need["GPU"] = gpus
            if any(
                all(m.get(k, 0) >= v for k, v in need.items()) for m, _ in instance_types.values()
            ):
                demand.append((need, rng.randint(1, 4) if small else rng.randint(10, 120)))
    return Workload(instance_types, demand)
