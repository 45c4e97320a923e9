"""The fit of the model of step times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.train import perf_model
from shoal.train.perf_model import PerfParams, accum_time, fit_perf_params, optim_time

TRUE = PerfParams(0.1, 0.01, 0.5, 1.0, 1e-6, 1e-6, 1.2)


def _measurements(params: PerfParams, seed: int, noise: float, count: int = 1000) -> list[Any]:
    random = np.random.RandomState(seed)
    replicas = random.randint(1, 17, count)
    nodes = np.minimum(replicas, random.randint(1, 17, count))
    sizes = random.randint(32, 1024, count)
    accum = accum_time(params, sizes) + random.normal(0, noise, count)
    optim = optim_time(params, nodes, replicas, sizes) + random.normal(0, noise, count)
    return [nodes, replicas, sizes, np.maximum(accum, 1e-3), np.maximum(optim, 1e-3)]


def _adaptdl_loss(params: PerfParams, nodes: Any, replicas: Any, sizes: Any, *times: Any) -> float:
    """The loss that AdaptDL minimizes, penalties included."""
    accum, optim = accum_time(params, sizes), optim_time(params, nodes, replicas, sizes)
    errors = [
        np.sqrt(np.mean(np.log(p / t) ** 2)) for p, t in zip((accum, optim), times, strict=True)
    ]
    growth = (params.beta_n / params.alpha_n) ** 2 + (params.beta_r / params.alpha_r) ** 2
    return float(sum(errors) + 1e-3 * (params.gamma - 1) ** 2 + 1e-2 * growth)


def _prediction_errors(params: PerfParams, data: list[Any]) -> Any:
    nodes, replicas, sizes, accum, optim = (np.asarray(column) for column in data)
    predicted = [accum_time(params, sizes), optim_time(params, nodes, replicas, sizes)]
    return np.abs(np.concatenate(predicted) / np.concatenate([accum, optim]) - 1)


@pytest.mark.parametrize("noise", [0.001, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_noisy_measurements_are_fitted_as_well_as_by_their_true_parameters(
    seed: int, noise: float
) -> None:
    data = _measurements(TRUE, seed, noise)
    assert _adaptdl_loss(fit_perf_params(*data), *data) < 1.1 * _adaptdl_loss(TRUE, *data)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "params",
    [
        TRUE,
        PerfParams(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14),
        PerfParams(0.002, 1e-5, 0.0015, 1e-4, 8e-4, 2e-5, 3.0),  # milliseconds
        PerfParams(20.0, 0.5, 30.0, 2.0, 5.0, 0.3, 6.0),  # minutes
    ],
)
def test_measurements_without_noise_are_fitted_exactly(params: PerfParams, seed: int) -> None:
    data = [np.asarray(column) for column in _measurements(params, seed, noise=0.0, count=200)]
    data[3], data[4] = accum_time(params, data[2]), optim_time(params, *data[:3])
    assert np.max(_prediction_errors(fit_perf_params(*data), data)) < 0.005


def test_one_measurement_is_half_constant_half_per_sample() -> None:
    params = fit_perf_params([1], [1], [128], [0.5], [0.5])
    assert list(params[:2]) == pytest.approx([0.25, 0.0019531], rel=1e-4)
    assert max(params[2:6]) < 1e-6
    assert 1 <= params.gamma <= 10


def test_two_batch_sizes_separate_constant_and_per_sample_time() -> None:
    params = fit_perf_params([1, 1], [1, 1], [64, 128], [0.3, 0.5], [0.3, 0.5])
    assert list(params[:2]) == pytest.approx([0.1, 0.003125], rel=1e-3)


def test_the_network_between_nodes_is_assumed_slower_than_within_one() -> None:
    params = fit_perf_params(
        [1, 1, 1], [1, 1, 2], [64, 128, 128], [0.3, 0.5, 0.5], [0.3, 0.5, 0.55]
    )
    assert 0.0499 < params.alpha_r < 0.0565
    assert params.alpha_n == pytest.approx(1.1 * params.alpha_r)
    assert params.beta_n < 1e-6


def test_growth_of_the_reduction_is_measured_from_more_than_two_replicas() -> None:
    nodes = [1, 1, 2, 4]
    params = fit_perf_params(
        nodes, nodes, [64, 128, 128, 128], [0.3, 0.5, 0.5, 0.5], [0.3, 0.5, 0.6, 0.65]
    )
    assert params.alpha_n == pytest.approx(0.1003, rel=0.03)
    assert params.beta_n == pytest.approx(0.0250, rel=0.03)


def test_repeated_measurements_of_one_configuration_count_as_their_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes_seen = []
    residuals = perf_model._residuals

    def counted(bins: Any, point: Any) -> Any:
        sizes_seen.append(len(bins.weight))
        return residuals(bins, point)

    monkeypatch.setattr(perf_model, "_residuals", counted)
    times = np.tile([0.29, 0.31, 0.5, 0.5], 250)
    sizes = np.tile([64, 64, 128, 128], 250)
    params = fit_perf_params(np.ones(1000), np.ones(1000), sizes, times, times)
    assert set(sizes_seen) == {2}
    assert accum_time(params, 64) == pytest.approx(np.sqrt(0.29 * 0.31), rel=1e-4)


def test_measurements_that_cannot_be_times_are_left_out() -> None:
    bad = [np.nan, np.inf, 0.0, -1.0]
    params = fit_perf_params([1] * 5, [1] * 5, [128] * 5, [*bad, 0.5], [0.5] * 5)
    assert accum_time(params, 128) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="nothing to fit"):
        fit_perf_params([1], [1], [128], [0.0], [0.5])


@pytest.mark.parametrize("seed", range(5))
def test_contradictory_measurements_give_finite_parameters_in_bounds(seed: int) -> None:
    random = np.random.RandomState(seed)
    replicas = random.randint(1, 9, 40)
    times = random.lognormal(0, 3, (2, 40))
    params = fit_perf_params(np.ones(40), replicas, random.randint(1, 512, 40), *times)
    assert np.all(np.isfinite(params))
    assert min(params) > 0
    assert 1 <= params.gamma <= 10
