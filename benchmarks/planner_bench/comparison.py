"""What a plan achieves in a scenario, to compare Shoal's with Ray's."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.planner_bench.ray_scheduler import schedule_scenario
from benchmarks.planner_bench.scenarios import Scenario
from shoal.scaling import Plan

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Outcome:
    """How many floors, gangs and tasks are unmet, in the order in which both planners serve them;
    the price per hour of the launches, and their number."""

    unmet: tuple[int, int, int]
    price: float
    machines: int

    def is_as_good_as(self, other: Outcome) -> bool:
        """Whether this meets no less at no higher price, at equal price with no more machines."""
        if self.unmet != other.unmet:
            return self.unmet < other.unmet
        if abs(self.price - other.price) > _ROUNDING:
            return self.price < other.price
        return self.machines <= other.machines


def shoal_outcome(case: Scenario) -> Outcome:
    """The outcome of Shoal's plan."""
    planned = case.plan()
    price = sum(x.count * case.prices[x.node_type] for x in planned.launches)
    return Outcome(_unmet(planned), price, sum(x.count for x in planned.launches))


def ray_outcome(case: Scenario) -> Outcome:
    """The outcome of the plan of Ray's v2 scheduler."""
    ray = schedule_scenario(case)
    price = sum(case.prices[name] * n for name, n in ray.launches.items())
    unmet = (ray.floors_unplaced, ray.gangs_unplaced, ray.unplaced)
    return Outcome(unmet, price, sum(ray.launches.values()))


def _unmet(planned: Plan) -> tuple[int, int, int]:
    floors = sum(u.count for u in planned.unmet if u.subject.startswith("request_resources"))
    gangs = sum(u.count for u in planned.unmet if u.subject.startswith("placement group"))
    return floors, gangs, sum(u.count for u in planned.unmet) - floors - gangs
