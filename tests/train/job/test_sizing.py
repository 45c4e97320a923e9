"""How many workers a job gets, on known and on fitted cost curves."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from shoal.train.goodput import GoodputFunction, GradParams
from shoal.train.job.sizing import BALANCED, COST, TIME, Prices, SizeGoodput, decide
from shoal.train.perf_model import PerfParams, accum_time, fit_perf_params, optim_time


def _curve(*goodputs: float) -> list[SizeGoodput]:
    return [SizeGoodput(n, n, g, g, 128) for n, g in enumerate(goodputs, start=1)]


_LINEAR = _curve(*(100.0 * n for n in range(1, 33)))


def test_it_grows_where_more_workers_train_faster() -> None:
    decision = decide(_LINEAR, 1, minimum=1, maximum=32)
    assert decision.target == 2
    assert "100% faster" in decision.reason


def test_it_at_most_doubles() -> None:
    assert decide(_LINEAR, 4, minimum=1, maximum=32).target == 8


def test_it_gives_back_no_worker_that_adds_its_share() -> None:
    assert decide(_LINEAR, 32, minimum=1, maximum=32).target == 32


def test_workers_that_add_less_than_five_percent_are_released() -> None:
    decision = decide(_curve(100, 190, 195, 197), 4, minimum=1, maximum=8)
    assert decision.target == 2
    assert decision.reason == "the last 2 workers add less than 5% goodput and are released"


def test_it_keeps_the_minimum() -> None:
    assert decide(_curve(100, 101, 102), 3, minimum=2, maximum=3).target == 2


def test_a_gain_of_less_than_five_percent_is_no_reason_to_grow() -> None:
    assert decide(_curve(100, 104), 1, minimum=1, maximum=2).target == 1


def test_an_expensive_rescale_must_pay_within_five_minutes() -> None:
    sizes = _curve(100, 110)
    assert decide(sizes, 1, minimum=1, maximum=2, rescale_s=20).target == 2
    decision = decide(sizes, 1, minimum=1, maximum=2, rescale_s=40)
    assert decision.target == 1
    assert "would not pay a rescale of 40.0 s" in decision.reason


def test_a_size_that_was_released_is_not_tried_again() -> None:
    assert decide(_LINEAR, 4, minimum=1, maximum=32, avoided=(6,)).target == 5


def test_the_lowest_cost_is_one_worker_where_workers_add_less_than_their_price() -> None:
    sizes = _curve(100, 180, 240)
    assert decide(sizes, 3, minimum=1, maximum=3, objective=COST).target == 1


def test_an_expensive_head_makes_more_workers_the_cheaper_choice() -> None:
    prices = Prices(per_worker=0.1, others=1.0)
    decision = decide(_curve(100, 180, 240), 1, minimum=1, maximum=3, objective=COST, prices=prices)
    assert decision.target == 2
    assert "per sample" in decision.reason


def test_balanced_lies_between_time_and_cost() -> None:
    sizes = _curve(100, 190, 260, 300, 320, 330)
    chosen = {
        objective: decide(sizes, 6, minimum=1, maximum=6, objective=objective).target
        for objective in (COST, BALANCED, TIME)
    }
    assert chosen[COST] < chosen[BALANCED] < chosen[TIME]


def test_without_a_prediction_for_the_current_size_nothing_changes() -> None:
    assert decide(_curve(100, 200), 3, minimum=1, maximum=4).target == 3


@pytest.mark.parametrize("seed", range(60))
def test_decisions_end_within_five_percent_of_the_best_size(seed: int) -> None:
    """From one worker on, each decision with a model that is fitted to the sizes seen so far."""
    random = np.random.default_rng(seed)
    lowest = [0.005, 1e-5, 0.002, 0.0, 0.001, 0.0, 1.0]
    values: Any = random.uniform(lowest, [0.1, 2e-3, 0.2, 0.05, 0.1, 0.02, 4.0])
    true = PerfParams(*values)
    grad = GradParams(sqr=1.0, var=float(random.uniform(0.1, 50)))
    limits: dict[str, Any] = {
        "max_batch_size": 4096,
        "atomic_bsz_range": (16, 512),
        "accumulation": False,
    }
    sizes = np.arange(1, 17)

    def predicted(params: PerfParams) -> list[SizeGoodput]:
        best, batch, _ = GoodputFunction(params, grad, 128).optimize(sizes, sizes, **limits)
        return [
            SizeGoodput(int(n), int(n), float(g), float(g), int(n * b))
            for n, g, b in zip(sizes, best, batch, strict=True)
        ]

    truth = {size.workers: size.goodput for size in predicted(true)}
    current, path = 1, [1]
    measured: set[tuple[int, int]] = set()
    released: list[int] = []
    for _ in range(12):
        batch = int(GoodputFunction(true, grad, 128).optimize(current, current, **limits)[1])
        measured |= {(current, max(16, batch // 2)), (current, batch)}
        replicas, atomic = (np.array(column) for column in zip(*measured, strict=True))
        fitted = fit_perf_params(
            replicas, replicas, atomic, accum_time(true, atomic),
            optim_time(true, replicas, replicas, atomic),
        )  # fmt: skip
        target = decide(predicted(fitted), current, minimum=1, maximum=16, avoided=released).target
        if target == current:
            break
        if target < current:
            released.append(target + 1)
        current = target
        path.append(current)
    assert truth[current] >= 0.95 * max(truth.values()), path
    turns = sum(b < a for a, b in itertools.pairwise(path))
    assert turns <= 1, path
