"""Goodput, and the batch size that maximizes it."""

from shoal.train.goodput import (
    GoodputFunction,
    GradParams,
    PerfParams,
    fit_perf_params,
)

__all__ = [
    "GoodputFunction",
    "GradParams",
    "PerfParams",
    "fit_perf_params",
]
