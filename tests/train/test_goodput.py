"""Goodput and the choice of the batch size. The regression figures were computed with AdaptDL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.train.goodput import GoodputFunction, GradParams, PerfParams

MEASURED = GoodputFunction(
    PerfParams(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14),
    GradParams(sqr=0.00136, var=0.000502),
    128,
)


def _random_models() -> list[GoodputFunction]:
    random = np.random.RandomState(0)
    models = []
    for _ in range(100):
        perf, grads = random.gamma(2.0, 2.0, 7), random.gamma(2.0, 2.0, 2)
        perf[6] = np.clip(perf[6], 1.0, 10.0)  # gamma
        models.append(GoodputFunction(PerfParams(*perf), GradParams(*grads), 128))
    return models


RANDOM_MODELS = _random_models()
REPLICAS = np.arange(1, 6)
ONE_NODE = np.ones_like(REPLICAS)


def test_efficiency_is_one_at_the_initial_batch_size_and_falls_from_there() -> None:
    batch_sizes = np.geomspace(128, 12_800, 40)
    for model in RANDOM_MODELS:
        efficiency = model.efficiency(batch_sizes)
        assert efficiency[0] == pytest.approx(1.0)
        assert np.all((efficiency > 0) & (efficiency <= 1 + 1e-12))
        assert np.all(np.diff(efficiency) < 0)


def test_efficiency_is_that_of_adaptdl() -> None:
    expected = [1.0, 0.577902, 0.313363, 0.132038]
    assert MEASURED.efficiency(np.array([128, 256, 512, 1280])) == pytest.approx(expected, abs=1e-6)


def test_gradients_without_signal_and_noise_have_no_gain() -> None:
    model = GoodputFunction(PerfParams(0.1, 0.01, 0, 0, 0, 0, 1), GradParams(0.0, 0.0), 128)
    assert model.efficiency(256) == 0.5


@pytest.mark.parametrize(
    ("config", "throughput"),
    [
        ((1, 1, 128, 0), 150.9363),
        ((1, 2, 64, 0), 260.8690),
        ((2, 2, 64, 0), 257.0002),
        ((1, 4, 64, 1), 522.9444),
        ((4, 16, 80, 0), 1959.8634),
    ],
)
def test_throughput_is_that_of_adaptdl(config: tuple[int, ...], throughput: float) -> None:
    assert MEASURED.throughput(*config) == pytest.approx(throughput, abs=1e-4)


def test_goodput_is_throughput_times_efficiency() -> None:
    assert MEASURED(1, 4, 64, 1) == pytest.approx(163.8712, abs=1e-4)
    assert MEASURED(4, 16, 80, 0) == pytest.approx(258.7765, abs=1e-4)
    for model in RANDOM_MODELS:
        product = model.throughput(2, 4, 50, 2) * model.efficiency(4 * 50 * 3)
        assert model.evaluate(2, 4, 50, 2) == pytest.approx(product)


def test_goodput_below_the_initial_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="below the initial batch size 128"):
        MEASURED(1, 1, 127, 0)


def test_throughput_rises_with_the_atomic_batch_size_by_less_and_less() -> None:
    sizes = np.linspace(64, 1024, 31)
    for model in RANDOM_MODELS:
        throughput = model.throughput(2, 4, sizes, 0)
        assert np.all(np.diff(throughput) > 0)
        assert np.all(np.diff(throughput, n=2) < 1e-9)


def test_throughput_per_replica_falls_with_more_replicas() -> None:
    replicas = np.arange(2, 30)
    for model in RANDOM_MODELS:
        assert np.all(np.diff(model.throughput(2, replicas, 64, 0) / replicas) < 1e-9)


@pytest.mark.parametrize(
    ("nodes", "replicas", "goodput", "atomic_bsz"),
    [
        (1, 1, 150.9363, 128),
        (1, 2, 260.8690, 64),
        (2, 2, 257.0002, 64),
        (1, 4, 299.1455, 64),
        (4, 4, 292.0366, 64),
        (1, 8, 319.0613, 64),
        (8, 8, 305.7172, 64),
        (16, 16, 297.0319, 64),
    ],
)
def test_the_best_goodput_is_that_of_adaptdl(
    nodes: int, replicas: int, goodput: float, atomic_bsz: int
) -> None:
    best = MEASURED.optimize(nodes, replicas, max_batch_size=1280, atomic_bsz_range=(64, 256))
    assert best == (pytest.approx(goodput, abs=1e-4), atomic_bsz, 0)


def test_optimize_returns_plain_numbers_for_plain_numbers() -> None:
    goodput, atomic_bsz, accum_steps = RANDOM_MODELS[0].optimize(1, 3)
    assert (type(goodput), type(atomic_bsz), type(accum_steps)) == (float, int, int)
    assert (atomic_bsz, accum_steps) == (43, 0)


def test_optimize_returns_arrays_in_the_shape_of_its_arguments() -> None:
    nodes, replicas = np.array([[1], [2]]), np.array([2, 4, 8])
    columns = MEASURED.optimize(nodes, replicas, max_batch_size=1280, atomic_bsz_range=(64, 256))
    assert [column.shape for column in columns] == [(2, 3)] * 3
    single = MEASURED.optimize(2, 8, max_batch_size=1280, atomic_bsz_range=(64, 256))
    assert [column[1, 2] for column in columns] == list(single)


@pytest.mark.parametrize("model", RANDOM_MODELS[:10])
class TestBounds:
    def test_without_bounds_replicas_share_the_initial_batch(self, model: GoodputFunction) -> None:
        _, atomic_bsz, accum_steps = model.optimize(ONE_NODE, REPLICAS)
        assert list(atomic_bsz) == [128, 64, 43, 32, 26]
        assert not np.any(accum_steps)

    def test_the_atomic_batch_size_stays_in_its_range(self, model: GoodputFunction) -> None:
        _, atomic_bsz, accum_steps = model.optimize(ONE_NODE, REPLICAS, atomic_bsz_range=(64, 256))
        assert np.all((atomic_bsz >= 64) & (atomic_bsz <= 256))
        assert atomic_bsz[0] == 128
        assert not np.any(accum_steps)

    @pytest.mark.parametrize("accumulation", [False, True])
    def test_a_range_of_one_size_decides(self, model: GoodputFunction, accumulation: bool) -> None:
        goodput, atomic_bsz, accum_steps = model.optimize(
            ONE_NODE, REPLICAS, atomic_bsz_range=(256, 256), accumulation=accumulation
        )
        assert list(atomic_bsz) == [256] * 5
        assert not np.any(accum_steps)
        assert np.all(goodput > 0)

    def test_the_total_batch_size_is_limited(self, model: GoodputFunction) -> None:
        _, atomic_bsz, _ = model.optimize(ONE_NODE, REPLICAS, max_batch_size=1280)
        assert np.all(atomic_bsz * REPLICAS <= 1280 + REPLICAS)

    def test_a_fixed_atomic_size_grows_with_replicas(self, model: GoodputFunction) -> None:
        goodput, atomic_bsz, _ = model.optimize(
            1, 4, max_batch_size=1024, atomic_bsz_range=(128, 128)
        )
        assert atomic_bsz == 128
        assert goodput > 0

    @pytest.mark.parametrize("nodes", [ONE_NODE, REPLICAS], ids=["one-node", "many-nodes"])
    def test_accumulation_stays_in_all_bounds(self, model: GoodputFunction, nodes: Any) -> None:
        _, atomic_bsz, accum_steps = model.optimize(
            nodes, REPLICAS, max_batch_size=1280, atomic_bsz_range=(64, 256), accumulation=True
        )
        passes = accum_steps + 1
        assert np.all((atomic_bsz >= 64) & (atomic_bsz <= 256))
        assert np.all((accum_steps >= 0) & (accum_steps <= 15))
        assert np.all(atomic_bsz * REPLICAS * passes < 1280 + REPLICAS * passes)
        assert atomic_bsz[0] == 128 or accum_steps[0] > 0
        # Several replicas accumulate only what does not fit into one pass.
        several = REPLICAS > 1
        assert np.all(((atomic_bsz * passes >= 256) | (accum_steps == 0))[several])


def test_accumulation_is_never_worse_than_none() -> None:
    for model in RANDOM_MODELS:
        bounds: dict[str, Any] = {"max_batch_size": 1280, "atomic_bsz_range": (64, 256)}
        without, _, _ = model.optimize(REPLICAS, REPLICAS, **bounds)
        with_accumulation, _, _ = model.optimize(REPLICAS, REPLICAS, accumulation=True, **bounds)
        assert np.all(with_accumulation >= without * (1 - 1e-3))


def test_an_allocation_that_cannot_reach_the_initial_batch_size_has_no_goodput() -> None:
    goodput, _, _ = MEASURED.optimize(1, REPLICAS, atomic_bsz_range=(16, 32))
    assert list(goodput[:3]) == [0, 0, 0]
    assert np.all(goodput[3:] > 0)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="at least the initial batch size"):
        MEASURED.optimize(1, 1, max_batch_size=64)
    with pytest.raises(ValueError, match="one replica on each node"):
        MEASURED.optimize(3, 2)
