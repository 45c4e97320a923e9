"""The input of a simulation: the work that arrives, and how the simulated cloud behaves."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.scaling.demand import Gang, Shape


@dataclass(frozen=True)
class Arrival:
    """`count` tasks of a shape, or gangs, arrive at a time and run for `seconds` each; or a floor
    is set, until the next one."""

    at: float
    count: int
    seconds: float = 0.0
    shape: Shape | None = None
    gang: Gang | None = None
    floor: Shape | None = None


@dataclass(frozen=True)
class SimulationSettings:
    """`boot_s` is how long an instance takes to become a ready node, varied by up to the share
    `boot_jitter`; with `measured_boots_s`, the launches take these times in turn instead: the
    longest waits depend on the slowest boots, not on the usual one. `failure_rate` is the share of
    launches that fail, `interruptions_per_hour` the rate of spot interruptions, `interval_s` the
    least time between plans, `reaction_s` the time from a change until a plan sees it.
    `worker_start_s` is how long Ray takes to start a worker process, which a task needs unless one
    is idle on its node."""

    boot_s: float = 90.0
    boot_jitter: float = 0.2
    measured_boots_s: tuple[float, ...] = ()
    failure_rate: float = 0.0
    interruptions_per_hour: float = 0.0
    drain_s: float = 5.0
    interval_s: float = 1.0
    reaction_s: float = 0.0
    worker_start_s: float = 0.0
    seed: int = 0
