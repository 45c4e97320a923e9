"""The result of a simulated run: cost, waiting times, and node counts over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """The cluster at one time. `ready` and `launching` count workers, `waiting` tasks and gangs;
    `price_per_hour` is the price of all instances."""

    at: float
    ready: int
    launching: int
    waiting: int
    price_per_hour: float


@dataclass(frozen=True)
class SimulationResult:
    """A whole run. Waits are in seconds, from arrival to start. `busy_share` is the part of the
    workers' ready time in which they had work. `priced` is false if the price of some node type is
    unknown."""

    cost: float
    priced: bool
    seconds: float
    tasks: int
    unfinished: int
    wait_p50: float
    wait_p90: float
    wait_p95: float
    wait_p99: float
    wait_max: float
    peak_nodes: int
    node_hours: float
    busy_share: float
    launches: int
    failures: int
    interruptions: int
    plans: int
    samples: tuple[Sample, ...] = ()


def percentiles(waits: Counter[float], shares: Sequence[float]) -> list[float]:
    """The waits that these shares of all tasks did not exceed; 0 where there are none."""
    total = sum(waits.values())
    ordered = sorted(waits.items())
    result = []
    for share in shares:
        counted, value = 0, 0.0
        for wait, count in ordered:
            counted += count
            value = wait
            if counted >= share * total:
                break
        result.append(value)
    return result
