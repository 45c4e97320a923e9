"""Hints for AdaptDL's scheduler. Shoal's controller needs none: workers report to it themselves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from adaptdl.goodput import PerfParams

PERF_PARAMS: Mapping[str, Any] = MappingProxyType(dict.fromkeys(PerfParams._fields))

SCHED_HINTS: Mapping[str, Any] = MappingProxyType(
    dict.fromkeys(
        (
            "initBatchSize",
            "localBszBounds",
            "globalBatchSize",
            "maxBatchSize",
            "maxProfiledReplicas",
            "gradientAccumulation",
            "gradParams",
            "perfParams",
        )
    )
)


def post_sched_hints(sched_hints: Mapping[str, Any], job_key: str | None = None) -> None:
    """Check the hints for unknown names; there is no scheduler that would receive them."""
    unknown = set(sched_hints) - set(SCHED_HINTS)
    if unknown:
        raise ValueError(f"unknown scheduling hints: {', '.join(sorted(unknown))}")
