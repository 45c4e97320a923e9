"""Random workloads of a realistic kind, the same for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

Resources = dict[str, float]


@dataclass(frozen=True)
class Workload:
    """Machines with prices, and tasks that each fit on at least one of them."""

    machines: dict[str, tuple[Resources, float]]
    demand: list[tuple[Resources, int]]


def workload(seed: int) -> Workload:
    """Every third one is small enough for exhaustive search; the others need tens of nodes."""
    r = random.Random(seed)
    small = seed % 3 == 0
    machines: dict[str, tuple[Resources, float]] = {}
    for number in range(r.randint(3, 5) if small else r.randint(3, 8)):
        cpu = r.choice([2, 4, 8, 16, 32, 48, 64, 96])
        memory = cpu * r.choice([2, 4, 8])
        gpu = r.choice([0, 0, 0, 1, 1, 2, 4, 8]) if cpu >= 4 else 0
        # About what clouds charge, with the unevenness of real price lists.
        price = (0.03 * cpu + 0.004 * memory + 0.6 * gpu) * r.uniform(0.8, 1.3)
        resources: Resources = {"CPU": cpu, "memory": memory}
        if gpu:
            resources["GPU"] = gpu
        machines[f"m{number}"] = (resources, round(price, 4))
    demand: list[tuple[Resources, int]] = []
    while not demand:
        for _ in range(r.randint(1, 4) if small else r.randint(1, 10)):
            need: Resources = {"CPU": r.choice([0.5, 1, 1, 2, 3, 4, 6, 8])}
            if memory := r.choice([0, 0, 1, 2, 4, 7, 16]):
                need["memory"] = memory
            if gpus := r.choice([0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0]):
                need["GPU"] = gpus
            if any(all(m.get(k, 0) >= v for k, v in need.items()) for m, _ in machines.values()):
                demand.append((need, r.randint(1, 4) if small else r.randint(10, 120)))
    return Workload(machines, demand)
