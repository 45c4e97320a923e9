"""Goodput: how fast a training job makes progress, and the batch size that makes it fastest.

Goodput is throughput (samples per second) times statistical efficiency (progress per sample,
relative to the initial batch size). Throughput comes from the model of step times in
`perf_model`; efficiency comes from the noise of the gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from shoal.train.perf_model import PerfParams, accum_time, fit_perf_params, optim_time

__all__ = ["GoodputFunction", "GradParams", "PerfParams", "fit_perf_params"]

Array = Any  # numpy has no types here

_CANDIDATES = 100  # batch sizes that optimize() compares, evenly spaced on a logarithmic scale
_ROUNDING = 1e-8


class GradParams(NamedTuple):
    """Statistics of the gradients at the initial batch size."""

    sqr: float  # squared norm of the true gradient
    var: float  # variance of the gradient


class GoodputFunction:
    """Predicts goodput for an allocation of replicas and a batch size.

    All methods accept numbers or arrays that broadcast together.
    """

    def __init__(
        self, perf_params: PerfParams, grad_params: GradParams, init_batch_size: int
    ) -> None:
        self._perf_params = PerfParams(*perf_params)
        self._grad_params = GradParams(*grad_params)
        self._init_batch_size = init_batch_size

    def __call__(
        self, num_nodes: Array, num_replicas: Array, atomic_bsz: Array, accum_steps: Array
    ) -> Array:
        """The same as `evaluate`."""
        return self.evaluate(num_nodes, num_replicas, atomic_bsz, accum_steps)

    def evaluate(
        self, num_nodes: Array, num_replicas: Array, atomic_bsz: Array, accum_steps: Array
    ) -> Array:
        """Goodput in samples of the initial batch size's worth per second.

        `atomic_bsz` is the number of samples in one forward and backward pass of one replica;
        `accum_steps` is the number of passes before the one that synchronizes.
        """
        batch_size = _batch_size(num_replicas, atomic_bsz, accum_steps)
        if np.any(batch_size < self._init_batch_size):
            raise ValueError(
                f"a total batch size of {np.min(batch_size)} is below the initial batch size "
                f"{self._init_batch_size}; goodput is defined from the initial batch size upwards"
            )
        throughput = self.throughput(num_nodes, num_replicas, atomic_bsz, accum_steps)
        return throughput * self.efficiency(batch_size)

    def throughput(
        self, num_nodes: Array, num_replicas: Array, atomic_bsz: Array, accum_steps: Array
    ) -> Array:
        """Samples per second."""
        seconds = np.asarray(accum_steps) * accum_time(self._perf_params, atomic_bsz)
        seconds = seconds + optim_time(self._perf_params, num_nodes, num_replicas, atomic_bsz)
        return _batch_size(num_replicas, atomic_bsz, accum_steps) / seconds

    def efficiency(self, batch_size: Array) -> Array:
        """Progress per sample, relative to the initial batch size: 1 there, and falling."""
        sqr, var = self._grad_params
        scale = np.asarray(batch_size) / self._init_batch_size
        noise = var / scale + sqr
        gain = np.where(noise > 0, (var + sqr) / np.where(noise > 0, noise, 1.0), 1.0)
        return gain / scale

    def optimize(
        self,
        num_nodes: Array,
        num_replicas: Array,
        max_batch_size: int | None = None,
        atomic_bsz_range: tuple[int | None, int | None] | None = None,
        accumulation: bool = False,
    ) -> tuple[Array, Array, Array]:
        """The best goodput, and the atomic batch size and accumulation steps that reach it.

        The total batch size stays between the initial one and `max_batch_size` (by default the
        initial one), as far as the range of the atomic batch size allows. Returns plain numbers
        for plain numbers.
        """
        if max_batch_size is None:
            max_batch_size = self._init_batch_size
        if max_batch_size < self._init_batch_size:
            raise ValueError(
                f"max_batch_size is {max_batch_size}; "
                f"it must be at least the initial batch size, {self._init_batch_size}"
            )
        if np.any(np.less(num_nodes, 1)) or np.any(np.less(num_replicas, num_nodes)):
            raise ValueError("there must be at least one node, and one replica on each node")
        lowest, highest = atomic_bsz_range or (None, None)
        min_atomic_bsz, max_atomic_bsz = lowest or 1, highest or max_batch_size

        shape = np.broadcast(num_nodes, num_replicas).shape
        nodes = np.broadcast_to(num_nodes, shape).reshape(-1)
        replicas = np.broadcast_to(num_replicas, shape).reshape(-1)
        smallest = np.maximum(self._init_batch_size, min_atomic_bsz * replicas)
        local_bsz = (
            np.geomspace(smallest, np.maximum(smallest, max_batch_size), _CANDIDATES) / replicas
        )
        if accumulation:
            atomic_bsz, accum_steps = self._split(
                local_bsz, replicas, min_atomic_bsz, max_atomic_bsz
            )
        else:
            # The noise of the gradients is not known well enough from one gradient per step to
            # scale the learning rate by it: a single replica keeps the initial batch size.
            atomic_bsz = np.where(replicas == 1, self._init_batch_size, _ceil(local_bsz))
            accum_steps = np.zeros_like(atomic_bsz)
        atomic_bsz = np.clip(atomic_bsz, min_atomic_bsz, max(max_atomic_bsz, min_atomic_bsz))
        batch_size = _batch_size(replicas, atomic_bsz, accum_steps)
        # Clipping may have moved a candidate out of the range of total batch sizes.
        in_range = (batch_size >= self._init_batch_size) & (
            (batch_size < max_batch_size + replicas * (accum_steps + 1))
            | (accum_steps == 0) & (atomic_bsz == min_atomic_bsz)
        )
        goodput = np.where(
            in_range,
            self.throughput(nodes, replicas, atomic_bsz, accum_steps) * self.efficiency(batch_size),
            0.0,
        )
        best = np.argmax(goodput, axis=0), np.arange(replicas.size)
        columns = (goodput[best], atomic_bsz[best], accum_steps[best])
        if not shape:
            return float(columns[0][0]), int(columns[1][0]), int(columns[2][0])
        return columns[0].reshape(shape), columns[1].reshape(shape), columns[2].reshape(shape)

    def _split(
        self, local_bsz: Array, replicas: Array, min_atomic_bsz: int, max_atomic_bsz: int
    ) -> tuple[Array, Array]:
        """Splits each replica's batch into as few equal passes as fit the largest atomic size."""
        passes = _ceil(local_bsz / max_atomic_bsz)
        # One replica makes two passes at least when its batch grows (see optimize()), unless
        # these would be too small.
        splits = (replicas == 1) & (local_bsz > self._init_batch_size + _ROUNDING)
        splits &= local_bsz >= 2 * min_atomic_bsz
        passes = np.where(splits, np.maximum(passes, 2), passes)
        return _ceil(local_bsz / passes), passes - 1


def _batch_size(num_replicas: Array, atomic_bsz: Array, accum_steps: Array) -> Array:
    return np.asarray(num_replicas) * np.asarray(atomic_bsz) * (np.asarray(accum_steps) + 1)


def _ceil(values: Array) -> Array:
    """Rounds up, forgiving what floating point added to a whole number."""
    return np.ceil(values - _ROUNDING).astype(int)
