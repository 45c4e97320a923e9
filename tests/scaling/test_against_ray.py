"""Random scenarios with limits, gangs, floors and labels: never worse than Ray's scheduler."""

from __future__ import annotations

import pytest
from benchmarks.planner_bench.comparison import Outcome, ray_outcome, shoal_outcome
from benchmarks.planner_bench.exhaustive import TooLarge, holds_what_it_counts
from benchmarks.planner_bench.scenarios import scenario, varied_scenario

from tests.scaling.clusters import EXAMPLES

# Scenarios in which an earlier planner met less than Ray, or cost more.
ONCE_WORSE = (565, 587, 834, 958, 1424, 1617, 1689, 1814, 1985, 2285, 2358, 2446, 2455, 2531, 2600,
              52887)  # fmt: skip


@pytest.mark.parametrize("seed", [*range(EXAMPLES or 25), *ONCE_WORSE])
def test_a_plan_meets_no_less_than_rays_and_costs_no_more(seed: int) -> None:
    case = scenario(seed)
    shoal, ray = shoal_outcome(case), ray_outcome(case)
    assert shoal.is_as_good_as(ray), f"{shoal} is worse than {ray}"


@pytest.mark.parametrize("seed", range(EXAMPLES or 25))
def test_a_plan_for_a_family_of_sizes_on_two_markets_is_no_worse_than_rays(seed: int) -> None:
    """With custom resources and minimums."""
    case = varied_scenario(seed)
    shoal, ray = shoal_outcome(case), ray_outcome(case)
    assert shoal.is_as_good_as(ray), f"{shoal} is worse than {ray}"


@pytest.mark.parametrize("seed", [*range(EXAMPLES or 25), *ONCE_WORSE])
def test_what_a_plan_counts_as_met_fits(seed: int) -> None:
    case = scenario(seed)
    try:
        assert holds_what_it_counts(case, case.plan())
    except TooLarge:
        pytest.skip("too large to try all placements")


def test_less_unmet_goes_before_price_and_price_before_machines() -> None:
    ray = Outcome((0, 0, 1), 2.0, 2)
    assert Outcome((0, 0, 0), 9.0, 9).is_as_good_as(ray)
    assert not Outcome((0, 1, 0), 1.0, 1).is_as_good_as(ray)
    assert Outcome((0, 0, 1), 1.9, 5).is_as_good_as(ray)
    assert not Outcome((0, 0, 1), 2.1, 1).is_as_good_as(ray)
    assert not Outcome((0, 0, 1), 2.0, 3).is_as_good_as(ray)
