"""What a simulated run came to: money, waiting, and the number of nodes over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """The cluster at one moment. `ready` and `on_the_way` count workers, `waiting` tasks and
    gangs; `price_per_hour` is what all machines cost then."""

    at: float
    ready: int
    on_the_way: int
    waiting: int
    price_per_hour: float


@dataclass(frozen=True)
class Outcome:
    """A whole run. Waits are in seconds, from arrival to start; `busy_share` is the part of the
    workers' ready time in which they had something to do."""

    cost: float
    priced: bool
    seconds: float
    tasks: int
    unfinished: int
    wait_p50: float
    wait_p90: float
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
        seen, found = 0, 0.0
        for wait, count in ordered:
            seen += count
            found = wait
            if seen >= share * total:
                break
        result.append(found)
    return result
