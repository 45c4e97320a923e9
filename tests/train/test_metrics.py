"""What a running job measures."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.train.goodput import GradParams, PerfParams, fit_perf_params
from shoal.train.torch import metrics


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(metrics, "_clock", clock)
    monkeypatch.delenv("ADAPTDL_CHECKPOINT_PATH", raising=False)
    metrics._reset()
    yield clock
    metrics._fitter.wait(30)
    metrics._reset()


def _place(monkeypatch: pytest.MonkeyPatch, nodes: int, replicas: int) -> None:
    monkeypatch.setenv("ADAPTDL_NUM_NODES", str(nodes))
    monkeypatch.setenv("ADAPTDL_NUM_REPLICAS", str(replicas))


def _measure(
    clock: Clock, atomic_bsz: int, seconds: float, sync: float = 0.0, **kwargs: Any
) -> None:
    metrics.profile_step_start(atomic_bsz)
    clock.now += seconds
    metrics.profile_sync_time(sync)
    metrics.profile_step_commit(**kwargs)


def test_steps_are_counted_by_nodes_replicas_and_batch_size(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _place(monkeypatch, 1, 1)
    _measure(clock, 10, 2.0)
    _measure(clock, 10, 4.0)
    _measure(clock, 20, 3.0, accumulation_step=True)
    _place(monkeypatch, 2, 4)
    _measure(clock, 10, 5.0, sync=1.5)
    assert metrics._metrics_state().profile == {
        (1, 1, 10): {"optim_step_time": 6.0, "optim_sync_time": 0.0, "optim_count": 2},
        (1, 1, 20): {"accum_step_time": 3.0, "accum_count": 1},
        (2, 4, 10): {"optim_step_time": 5.0, "optim_sync_time": 1.5, "optim_count": 1},
    }


def test_the_time_of_synchronization_adds_up(clock: Clock) -> None:
    for waits, total in (((1.0, 2.0), 3.0), ((4.0, 5.0), 12.0)):
        metrics.profile_step_start(10)
        clock.now += 20
        for seconds in waits:
            metrics.profile_sync_time(seconds)
        metrics.profile_step_commit()
        assert metrics._metrics_state().profile[1, 1, 10]["optim_sync_time"] == total


def test_a_step_that_is_not_committed_does_not_count(clock: Clock) -> None:
    metrics.profile_step_start(10)
    metrics.profile_sync_time(7.0)
    clock.now += 1000
    _measure(clock, 10, 1.0, sync=0.5)
    metrics.profile_step_commit()  # nothing has been started
    sums = metrics._metrics_state().profile[1, 1, 10]
    assert sums == {"optim_step_time": 1.0, "optim_sync_time": 0.5, "optim_count": 1}


def test_the_fit_uses_committed_steps(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics._fit_perf_params()
    assert metrics._metrics_state().perf_params is None
    _place(monkeypatch, 1, 1)
    _measure(clock, 64, 0.3)
    _measure(clock, 128, 0.5)
    _place(monkeypatch, 1, 2)
    _measure(clock, 128, 0.55, sync=0.05)
    _measure(clock, 128, 0.5, accumulation_step=True)
    metrics.profile_step_start(128)
    metrics._fit_perf_params()
    params = metrics._metrics_state().perf_params
    assert params is not None
    assert list(params[:2]) == pytest.approx([0.1, 0.003125], rel=1e-3)
    assert params.alpha_r == pytest.approx(0.05, rel=0.01)


def test_the_model_is_fitted_again_as_training_goes_on_but_not_on_the_training_thread(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(*args: Any) -> PerfParams:
        threads.append(threading.current_thread())
        return fit_perf_params(*args)

    monkeypatch.setattr(metrics, "fit_perf_params", noted)
    for _ in range(9):
        _measure(clock, 128, 0.5)
    assert metrics._metrics_state().perf_params is None
    _measure(clock, 128, 0.5)
    metrics._fitter.wait(30)
    first = metrics._metrics_state().perf_params
    assert first is not None
    for _ in range(40):
        _measure(clock, 64, 0.3)
        metrics._fitter.wait(30)
    assert metrics._metrics_state().perf_params != first
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_only_the_first_worker_fits(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    _place(monkeypatch, 2, 2)
    monkeypatch.setenv("ADAPTDL_REPLICA_RANK", "1")
    for _ in range(20):
        _measure(clock, 128, 0.5)
    metrics._fitter.wait(30)
    assert metrics._metrics_state().perf_params is None


def test_the_gradient_statistics_of_all_models_add_up(clock: Clock) -> None:
    metrics.update_grad_params("generator", 1.0, 2.0)
    metrics.update_grad_params("discriminator", 10.0, 20.0)
    metrics.update_grad_params("generator", 3.0, 4.0)
    assert metrics._metrics_state().grad_params == GradParams(13.0, 24.0)


def test_goodput_is_known_when_everything_is_measured(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="initial batch size is not known"):
        metrics.init_batch_size()
    metrics.set_batch_size(128, 1280, (64, 256), True)
    assert metrics.init_batch_size() == 128
    metrics.update_grad_params("model", 1.0, 2.0)
    assert metrics.get_goodput_fn() is None
    _measure(clock, 128, 0.5)
    metrics._fit_perf_params()
    goodput = metrics.get_goodput_fn()
    assert goodput is not None
    assert goodput(1, 1, 128, 0) == pytest.approx(256.0)


def test_measurements_survive_a_checkpoint(clock: Clock) -> None:
    metrics.set_batch_size(128, 1280, (64, None), True)
    metrics.update_grad_params("model", 1.0, 2.0)
    metrics.update_progress(12.5)
    _measure(clock, 128, 0.5, sync=0.1)
    metrics._fit_perf_params()
    before = metrics._metrics_state()
    file = io.BytesIO()
    before.save(file)
    metrics._reset()
    file.seek(0)
    metrics._metrics_state().load(file)
    after = metrics._metrics_state()
    kept = {name: value for name, value in vars(before).items() if name != "profile"}
    assert {name: value for name, value in vars(after).items() if name != "profile"} == kept
    assert after.profile == before.profile
    assert metrics.get_progress() == 12.5
    _measure(clock, 128, 0.7)
    assert after.profile[1, 1, 128]["optim_count"] == 2
