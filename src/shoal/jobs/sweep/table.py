"""The results of a sweep as rows, sorted by a metric. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.core.errors import ConfigError
from shoal.jobs.sweep.command import text_of
from shoal.jobs.sweep.journal import Result

_MAX_METRICS = 4


def metric_names(results: Sequence[Result]) -> list[str]:
    """The metrics of the results, those that most of them have first."""
    counts: dict[str, int] = {}
    for result in results:
        for name in result["metrics"]:
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: -counts[name])


def parameter_names(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result["params"]))


def sorted_results(results: Sequence[Result], by: str = "", *, descending: bool) -> list[Result]:
    """Results by a metric, a parameter or `seconds`; by default by the first metric. Those without
    a value come last."""
    ordered = sorted(results, key=lambda result: result["run"])
    names = metric_names(ordered)
    known = [*names, *parameter_names(ordered), "seconds", "run"]
    by = by or (names[0] if names else "run")
    if by not in known:
        raise ConfigError(f"no run has {by}", fix=f"sort by one of {', '.join(known)}")
    values = [(value_of(result, by), result) for result in ordered]
    missing = [result for value, result in values if value is None]
    present = [(value, result) for value, result in values if value is not None]
    numeric = all(isinstance(value, (int, float)) for value, _ in present)
    present.sort(key=lambda item: item[0] if numeric else str(item[0]), reverse=descending)
    return [*(result for _, result in present), *missing]


def value_of(result: Result, name: str) -> Any:
    if name in result["metrics"]:
        return result["metrics"][name]
    if name in ("seconds", "run"):
        return result[name]
    return result["params"].get(name)


def table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Header and cells. Only the metrics that most runs have are shown."""
    parameters, metrics = parameter_names(results), metric_names(results)[:_MAX_METRICS]
    header = ["RUN", *parameters, *metrics, "STATUS", "TIME"]
    rows = [
        [
            str(result["run"]),
            *(short(result["params"][n]) if n in result["params"] else "" for n in parameters),
            *(short(result["metrics"].get(n)) for n in metrics),
            result["status"],
            f"{result['seconds']:.1f}s",
        ]
        for result in results
    ]
    return header, rows


def short(value: Any) -> str:
    """A value for people: four digits of a number."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return text_of(value)


def params_text(params: dict[str, Any]) -> str:
    return " ".join(f"{name}={short(value)}" for name, value in params.items())
