"""What happens to a simulated cluster: work that arrives, and a cloud with its habits."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.scaling.demand import Gang, Shape


@dataclass(frozen=True)
class Arrival:
    """`count` tasks of a shape, or gangs, arrive at a moment and run for so many seconds each; or
    a floor is set, which stands until the next one."""

    at: float
    count: int
    seconds: float = 0.0
    shape: Shape | None = None
    gang: Gang | None = None
    floor: Shape | None = None


@dataclass(frozen=True)
class World:
    """How long a machine takes to become a node, give or take a share of it; how often one cannot
    be had; how often a spot machine is taken away; and how often the planner looks."""

    boot_s: float = 90.0
    boot_spread: float = 0.2
    failure_rate: float = 0.0
    interruptions_per_hour: float = 0.0
    drain_s: float = 5.0
    interval_s: float = 10.0
    seed: int = 0
