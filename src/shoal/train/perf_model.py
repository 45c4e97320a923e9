"""How long a training step takes, as a function of nodes, replicas and batch size.

The model is the one of the Pollux paper (OSDI '21). A step without synchronization takes
`alpha_c + beta_c * atomic_bsz`; the gradient reduction takes `alpha + beta * max(replicas - 2, 0)`,
with one pair of figures across nodes and one within a node; a step with synchronization is the
gamma-norm of the two, since they overlap: gamma 1 is no overlap, a large gamma is full overlap.

Only numpy is used, because nodes have no more than what torch brings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy has no types here

_SMALLEST = 1e-8  # seconds; "no cost", yet it has a logarithm
_LARGEST = 1e8
_GAMMA_BOUNDS = (1.0, 10.0)
_GAMMA_STARTS = (1.0, 2.0, 5.0)
# Prefer little overlap, and little growth with the number of replicas, when the measurements allow
# several answers. Small enough to leave measurements without noise fitted to a part in a thousand.
_GAMMA_PENALTY = 1e-7
_GROWTH_PENALTY = 1e-8
_MAX_ITERATIONS = 200

_ALPHA_C, _BETA_C, _ALPHA_N, _BETA_N, _ALPHA_R, _BETA_R, _GAMMA = range(7)


class PerfParams(NamedTuple):
    """The parameters of the model, times in seconds."""

    alpha_c: float  # compute: constant
    beta_c: float  # compute: per sample
    alpha_n: float  # network, several nodes: constant
    beta_n: float  # network, several nodes: per replica beyond the second
    alpha_r: float  # network, one node: constant
    beta_r: float  # network, one node: per replica beyond the second
    gamma: float  # overlap of compute and network, 1 to 10


def accum_time(params: PerfParams, atomic_bsz: Array) -> Array:
    """Seconds of one forward and backward pass without synchronization."""
    return params.alpha_c + params.beta_c * np.asarray(atomic_bsz, dtype=float)


def network_time(params: PerfParams, num_nodes: Array, num_replicas: Array) -> Array:
    """Seconds of one gradient reduction."""
    num_nodes, num_replicas = np.asarray(num_nodes), np.asarray(num_replicas)
    retrogress = np.maximum(num_replicas - 2, 0)
    across = params.alpha_n + params.beta_n * retrogress
    within = params.alpha_r + params.beta_r * retrogress
    return np.where(num_nodes > 1, across, np.where(num_replicas > 1, within, 0.0))


def optim_time(
    params: PerfParams, num_nodes: Array, num_replicas: Array, atomic_bsz: Array
) -> Array:
    """Seconds of one forward and backward pass with synchronization."""
    compute = accum_time(params, atomic_bsz)
    network = network_time(params, num_nodes, num_replicas)
    longer, shorter = np.maximum(compute, network), np.minimum(compute, network)
    return longer * (1.0 + (shorter / longer) ** params.gamma) ** (1.0 / params.gamma)


def fit_perf_params(
    num_nodes: Array,
    num_replicas: Array,
    atomic_bsz: Array,
    accum_step_time: Array,
    optim_step_time: Array,
) -> PerfParams:
    """The parameters that fit measured steps best, by least squares of the logarithms of times.

    All arguments are sequences of the same length, one element per measurement. What the
    measurements cannot tell is assumed optimistically: with one batch size, half of the compute
    time is constant; with at most two replicas, reduction does not slow down with more.
    """
    bins = _Bins.of(num_nodes, num_replicas, atomic_bsz, accum_step_time, optim_step_time)
    start, free = _start(bins)
    best, best_loss = start, np.inf
    starts = _GAMMA_STARTS if free[_GAMMA] else _GAMMA_STARTS[:1]
    for gamma in starts:
        start[_GAMMA] = gamma
        point, loss = _minimize(bins, start.copy(), free)
        if loss < best_loss:
            best, best_loss = point, loss
    params = [float(value) for value in np.exp(best[:_GAMMA])] + [float(best[_GAMMA])]
    if not np.any(bins.num_nodes > 1):
        # Reduction across nodes is not faster than within one.
        params[_ALPHA_N] = max(params[_ALPHA_N], 1.1 * params[_ALPHA_R])
        params[_BETA_N] = max(params[_BETA_N], 1.1 * params[_BETA_R])
    return PerfParams(*params)


class _Bins(NamedTuple):
    """Measurements averaged by configuration: as good as all of them for least squares."""

    num_nodes: Array
    num_replicas: Array
    atomic_bsz: Array
    log_accum_time: Array
    log_optim_time: Array
    weight: Array  # share of the measurements; the sum is 1

    @classmethod
    def of(cls, *columns: Array) -> _Bins:
        table = np.stack(np.broadcast_arrays(*(np.asarray(c, dtype=float) for c in columns)))
        table = table.reshape(len(columns), -1)
        usable = np.all(np.isfinite(table), axis=0) & np.all(table > 0, axis=0)
        table = table[:, usable]
        if not table.size:
            raise ValueError("no measurement with a positive, finite step time: nothing to fit")
        configs, index, counts = np.unique(
            table[:3], axis=1, return_inverse=True, return_counts=True
        )
        index = index.reshape(-1)
        mean = [np.bincount(index, np.log(times)) / counts for times in table[3:]]
        nodes, replicas, sizes = configs
        return cls(nodes, replicas, sizes, mean[0], mean[1], counts / counts.sum())


def _start(bins: _Bins) -> tuple[Array, Array]:
    """A first guess (logarithms of the six times, then gamma), and which parameters to fit."""
    free: Array = np.ones(7, dtype=bool)
    values = np.full(6, _SMALLEST)
    compute, total = np.exp(bins.log_accum_time), np.exp(bins.log_optim_time)
    mean_compute = float(bins.weight @ compute)
    values[_ALPHA_C] = mean_compute / 2
    values[_BETA_C] = mean_compute / 2 / float(bins.weight @ bins.atomic_bsz)
    if len(np.unique(bins.atomic_bsz)) == 1:
        free[_ALPHA_C] = False
    across = bins.num_nodes > 1
    within = ~across & (bins.num_replicas > 1)
    for alpha, beta, chosen in ((_ALPHA_N, _BETA_N, across), (_ALPHA_R, _BETA_R, within)):
        growth_seen = np.any(chosen & (bins.num_replicas > 2))
        free[alpha], free[beta] = np.any(chosen), growth_seen
        if free[alpha]:
            network = float(np.mean(np.maximum(total - compute, 0.01 * total)[chosen]))
            values[alpha] = network
            values[beta] = network / 10 if growth_seen else _SMALLEST
    free[_GAMMA] = np.any(bins.num_replicas > 1)
    return np.append(np.log(np.clip(values, _SMALLEST, _LARGEST)), 1.0), free


def _minimize(bins: _Bins, point: Array, free: Array) -> tuple[Array, float]:
    """Levenberg-Marquardt within bounds: a step is clipped to the bounds, and a parameter at a
    bound that would leave it is held for that step."""
    lower: Array = np.append(np.full(6, np.log(_SMALLEST)), _GAMMA_BOUNDS[0])
    upper: Array = np.append(np.full(6, np.log(_LARGEST)), _GAMMA_BOUNDS[1])
    residual, jacobian = _residuals(bins, point)
    loss, damping = float(residual @ residual), 1e-3
    for _ in range(_MAX_ITERATIONS):
        gradient = jacobian.T @ residual
        held = ((point <= lower) & (gradient > 0)) | ((point >= upper) & (gradient < 0))
        moving = free & ~held
        if not np.any(moving) or np.max(np.abs(gradient[moving])) < 1e-14:
            break
        normal = jacobian[:, moving].T @ jacobian[:, moving]
        scale = np.diag(np.diag(normal) + 1e-12)
        step = np.linalg.solve(normal + damping * scale, -gradient[moving])
        candidate = point.copy()
        candidate[moving] += np.clip(step, -3.0, 3.0)
        candidate = np.clip(candidate, lower, upper)
        new_residual, new_jacobian = _residuals(bins, candidate)
        new_loss = float(new_residual @ new_residual)
        if new_loss < loss:
            done = loss - new_loss < 1e-9 * loss
            point, residual, jacobian, loss = candidate, new_residual, new_jacobian, new_loss
            damping = max(damping / 5, 1e-9)
            if done:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return point, loss


def _residuals(bins: _Bins, point: Array) -> tuple[Array, Array]:
    """The residuals of both step times and of the penalties, and their Jacobian."""
    params = PerfParams(*np.append(np.exp(point[:_GAMMA]), point[_GAMMA]))
    root_weight = np.sqrt(bins.weight)[:, None]
    count = len(bins.weight)
    compute = accum_time(params, bins.atomic_bsz)
    network = network_time(params, bins.num_nodes, bins.num_replicas)
    total = optim_time(params, bins.num_nodes, bins.num_replicas, bins.atomic_bsz)

    by_compute = np.zeros((count, 7))  # derivatives of log(compute)
    by_compute[:, _ALPHA_C] = params.alpha_c / compute
    by_compute[:, _BETA_C] = params.beta_c * bins.atomic_bsz / compute

    by_network = np.zeros((count, 7))  # derivatives of log(network)
    retrogress = np.maximum(bins.num_replicas - 2, 0)
    across = bins.num_nodes > 1
    within = ~across & (bins.num_replicas > 1)
    for alpha, beta, chosen in ((_ALPHA_N, _BETA_N, across), (_ALPHA_R, _BETA_R, within)):
        by_network[chosen, alpha] = params[alpha] / network[chosen]
        by_network[chosen, beta] = params[beta] * retrogress[chosen] / network[chosen]

    share = (network / total) ** params.gamma  # of network in the gamma-norm
    by_total = (1 - share)[:, None] * by_compute + share[:, None] * by_network
    by_total[:, _GAMMA] = (_x_log_x(share) + _x_log_x(1 - share)) / params.gamma**2

    penalties = np.zeros(3)
    by_penalties = np.zeros((3, 7))
    penalties[0] = np.sqrt(_GAMMA_PENALTY) * (params.gamma - 1)
    by_penalties[0, _GAMMA] = np.sqrt(_GAMMA_PENALTY)
    for row, (alpha, beta) in enumerate(((_ALPHA_N, _BETA_N), (_ALPHA_R, _BETA_R)), start=1):
        penalties[row] = np.sqrt(_GROWTH_PENALTY) * params[beta] / params[alpha]
        by_penalties[row, [alpha, beta]] = -penalties[row], penalties[row]

    residual = np.concatenate(
        [
            (np.log(compute) - bins.log_accum_time) * root_weight[:, 0],
            (np.log(total) - bins.log_optim_time) * root_weight[:, 0],
            penalties,
        ]
    )
    return residual, np.concatenate(
        [root_weight * by_compute, root_weight * by_total, by_penalties]
    )


def _x_log_x(values: Array) -> Array:
    return values * np.log(np.maximum(values, 1e-300))
