"""What a running job measures: step times by configuration, gradient statistics, and progress.

A step counts once it is committed; one that a change of the membership interrupted is not. The
model of step times is fitted in a separate thread, on rank 0, from a copy of the measurements.
"""

from __future__ import annotations

import collections
import json
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from shoal.train import checkpoint, env
from shoal.train.goodput import GoodputFunction, GradParams, PerfParams, fit_perf_params

Config = tuple[int, int, int]  # nodes, replicas, atomic batch size
Profile = Mapping[Config, Mapping[str, float]]

_FIRST_FIT_STEPS = 10
_SECONDS_BETWEEN_FITS = 10.0

_clock = time.perf_counter


class _MetricsState(checkpoint.State):
    """The measurements of this job, kept in its checkpoints.

    `profile` has, for each configuration, the sums `accum_step_time`, `accum_count`,
    `optim_step_time`, `optim_sync_time` and `optim_count`.
    """

    def __init__(self) -> None:
        super().__init__("adaptdl-metrics")
        self.profile: dict[Config, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.perf_params: PerfParams | None = None
        self.grad_params: GradParams | None = None
        self.init_batch_size: int | None = None
        self.max_batch_size: int | None = None
        self.local_bsz_bounds: tuple[int | None, int | None] | None = None
        self.gradient_accumulation = False
        self.progress = 0.0

    def save(self, fileobj: IO[bytes]) -> None:
        values = {
            "profile": [[list(config), dict(sums)] for config, sums in self.profile.items()],
            "perf_params": self.perf_params,
            "grad_params": self.grad_params,
            "init_batch_size": self.init_batch_size,
            "max_batch_size": self.max_batch_size,
            "local_bsz_bounds": self.local_bsz_bounds,
            "gradient_accumulation": self.gradient_accumulation,
            "progress": self.progress,
        }
        fileobj.write(json.dumps(values).encode())

    def load(self, fileobj: IO[bytes]) -> None:
        values = json.loads(fileobj.read())
        self.profile.clear()
        for (nodes, replicas, atomic_bsz), sums in values["profile"]:
            self.profile[nodes, replicas, atomic_bsz].update(sums)
        self.perf_params = PerfParams(*values["perf_params"]) if values["perf_params"] else None
        self.grad_params = GradParams(*values["grad_params"]) if values["grad_params"] else None
        self.init_batch_size = values["init_batch_size"]
        self.max_batch_size = values["max_batch_size"]
        bounds = values["local_bsz_bounds"]
        self.local_bsz_bounds = (bounds[0], bounds[1]) if bounds else None
        self.gradient_accumulation = values["gradient_accumulation"]
        self.progress = values["progress"]


class _Step:
    """The step that is being measured."""

    def __init__(self, atomic_bsz: int) -> None:
        self.atomic_bsz = atomic_bsz
        self.start = _clock()
        self.sync_time = 0.0


class _Fitter:
    """Fits the model now and then, in a thread, so that training does not wait for it: when a new
    number of workers has been measured for some steps, and every few seconds from then on."""

    def __init__(self) -> None:
        self.fits = 0
        self.seconds = 0.0  # how long the last fit took
        self._thread: threading.Thread | None = None
        self._next_fit = 0.0
        self._place: tuple[int, int] | None = None

    def fit_if_due(self, state: _MetricsState) -> None:
        now = _clock()
        if self._thread is not None and self._thread.is_alive():
            return
        place = env.num_nodes(), env.num_replicas()
        if place != self._place:
            if measured_steps(state, *place) < _FIRST_FIT_STEPS:
                return
            self._place = place
        elif now < self._next_fit:
            return
        self._next_fit = now + _SECONDS_BETWEEN_FITS
        profile = {config: dict(sums) for config, sums in state.profile.items()}
        self._thread = threading.Thread(
            target=self._fit, args=(state, profile), name="shoal-fit", daemon=True
        )
        self._thread.start()

    def wait(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def _fit(self, state: _MetricsState, profile: Profile) -> None:
        begun = _clock()
        state.perf_params = _fit(profile) or state.perf_params
        self.seconds = _clock() - begun
        self.fits += 1


def measured_steps(state: _MetricsState, num_nodes: int, num_replicas: int) -> float:
    """How many steps were measured with so many nodes and replicas, at any batch size."""
    return sum(
        sums["optim_count"]
        for (nodes, replicas, _), sums in state.profile.items()
        if (nodes, replicas) == (num_nodes, num_replicas)
    )


_state: _MetricsState | None = None
_step: _Step | None = None
_fitter = _Fitter()
_grad_params: dict[Any, Any] = {}


def _metrics_state() -> _MetricsState:
    """The measurements of this process's job, made or loaded at the first call."""
    global _state
    if _state is None:
        _state = _MetricsState()
        checkpoint.load_state(_state)
    return _state


def fits() -> int:
    """How often the model was fitted; a new number means a new model."""
    return _fitter.fits


def fit_seconds() -> float:
    return _fitter.seconds


def _reset() -> None:
    """Forget everything, for tests."""
    global _state, _step, _fitter
    checkpoint.unregister("adaptdl-metrics")
    _state, _step, _fitter = None, None, _Fitter()
    _grad_params.clear()


# -- step times -----------------------------------------------------------------------------------


def profile_step_start(atomic_bsz: int) -> None:
    """Begin to measure a step, instead of one that was not committed."""
    global _step
    _step = _Step(atomic_bsz)


def profile_sync_time(sync_time: float) -> None:
    """Count seconds of this step that were spent waiting for the reduction of gradients."""
    if _step is not None:
        _step.sync_time += sync_time


def profile_step_commit(accumulation_step: bool = False) -> None:
    """The step is over and counts. `accumulation_step`: it ended without synchronization."""
    global _step
    step, _step = _step, None
    if step is None:
        return
    state = _metrics_state()
    step_time = _clock() - step.start
    sums = state.profile[env.num_nodes(), env.num_replicas(), step.atomic_bsz]
    if accumulation_step:
        sums.update(accum_step_time=step_time, accum_count=1)  # type: ignore[call-overload]
        return
    sums.update(  # type: ignore[call-overload]
        optim_step_time=step_time, optim_sync_time=step.sync_time, optim_count=1
    )
    if env.replica_rank() == 0:
        _fitter.fit_if_due(state)


def _fit_perf_params() -> None:
    """Fit the model of step times now."""
    state = _metrics_state()
    state.perf_params = _fit(state.profile) or state.perf_params


def _fit(profile: Profile) -> PerfParams | None:
    measured = {config: sums for config, sums in profile.items() if sums.get("optim_count")}
    if not measured:
        return None
    nodes, replicas, atomic_bsz = zip(*measured, strict=True)

    def column(name: str) -> Any:
        return np.array([sums.get(name, 0.0) for sums in measured.values()], dtype=float)

    # A step with synchronization contains one without, apart from the wait at its end.
    compute = np.maximum(column("optim_step_time") - column("optim_sync_time"), 0.0)
    compute = compute + column("accum_step_time")
    accum_time = compute / (column("accum_count") + column("optim_count"))
    optim_time = column("optim_step_time") / column("optim_count")
    try:
        return fit_perf_params(nodes, replicas, atomic_bsz, accum_time, optim_time)
    except ValueError:  # no step time is usable
        return None


# -- gradients and progress -----------------------------------------------------------------------


def update_grad_params(key: Any, grad_norm_sqr: float, grad_variance: float) -> None:
    """Set the gradient statistics of one model; those of all models (by `key`) are added."""
    _grad_params[key] = np.array([grad_norm_sqr, grad_variance], dtype=float)
    sqr, var = sum(_grad_params.values())
    _metrics_state().grad_params = GradParams(float(sqr), float(var))


def update_progress(progress: float) -> None:
    _metrics_state().progress = float(progress)


def get_progress() -> float:
    """Steps made, counted in steps at the initial batch size."""
    return _metrics_state().progress


# -- batch size -----------------------------------------------------------------------------------


def set_batch_size(
    init_batch_size: int,
    max_batch_size: int | None,
    local_bsz_bounds: tuple[int | None, int | None] | None,
    gradient_accumulation: bool,
) -> None:
    """Set what the loader that trains was created with. It calls this when training begins."""
    state = _metrics_state()
    state.init_batch_size = init_batch_size
    state.max_batch_size = max_batch_size
    state.local_bsz_bounds = local_bsz_bounds
    state.gradient_accumulation = gradient_accumulation


def init_batch_size() -> int:
    """The initial batch size of the loader that trains."""
    batch_size = _metrics_state().init_batch_size
    if batch_size is None:
        raise RuntimeError(
            "the initial batch size is not known before the first backward pass "
            "in the loop of an AdaptiveDataLoader"
        )
    return batch_size


def get_goodput_fn() -> GoodputFunction | None:
    """The goodput of this job, or None before enough is measured."""
    state = _metrics_state()
    if state.perf_params is None or state.grad_params is None or state.init_batch_size is None:
        return None
    return GoodputFunction(state.perf_params, state.grad_params, state.init_batch_size)
