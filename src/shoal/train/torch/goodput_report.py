"""What rank 0 tells the job's controller: the goodput of every number of workers, as predicted from
the steps that were measured. The controller needs no numpy."""

from __future__ import annotations

import math
import os

import numpy as np

from shoal.train import messages
from shoal.train.goodput import GoodputFunction, GradParams
from shoal.train.torch import metrics

# A gradient without noise: more samples per step add nothing.
_NO_NOISE = GradParams(1.0, 0.0)


def goodput_report(worker: str, num_nodes: int, num_replicas: int) -> messages.GoodputReport | None:
    """None before the current number of workers is measured."""
    state = metrics._metrics_state()
    if state.perf_params is None or state.init_batch_size is None:
        return None
    maximum = max(num_replicas, int(os.environ.get("SHOAL_TRAIN_MAX_WORKERS", num_replicas)))
    replicas = np.arange(1, maximum + 1)
    per_node = max(1, math.ceil(num_replicas / num_nodes))
    nodes = np.ceil(replicas / per_node).astype(int)
    if num_nodes == num_replicas > 1:
        nodes = replicas
    function = GoodputFunction(
        state.perf_params, state.grad_params or _NO_NOISE, state.init_batch_size
    )
    grows = state.max_batch_size is not None and state.grad_params is not None
    goodput, local, accumulation = function.optimize(
        nodes,
        replicas,
        max_batch_size=state.max_batch_size if grows else None,
        atomic_bsz_range=state.local_bsz_bounds if grows else None,
        accumulation=state.gradient_accumulation and grows,
    )
    throughput = function.throughput(nodes, replicas, local, accumulation)
    total = replicas * local * (accumulation + 1)
    if not grows:  # the last worker's part is smaller: the batch is the initial one
        total = np.minimum(total, state.init_batch_size)
        throughput = goodput = throughput * total / (replicas * local * (accumulation + 1))
    rows = zip(replicas, nodes, throughput, goodput, total, strict=True)
    return messages.GoodputReport(
        worker,
        num_replicas,
        num_nodes,
        tuple(tuple(float(value) for value in row) for row in rows),
        tuple(float(value) for value in state.perf_params),
        tuple(float(value) for value in state.grad_params) if state.grad_params else None,
        state.init_batch_size,
        state.max_batch_size,
        round(metrics.fit_seconds(), 4),
    )
