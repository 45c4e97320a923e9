"""What a run measured: the last JSON object that it printed on a line, its TensorBoard files, and
Sacred's metrics and result. Where two have the same name, the earlier of these counts.

Runs on nodes that may not have Shoal: it must import the standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.jobs.sweep.tensorboard import last_scalars

# A file of metrics that is longer than this is not read.
_MAX_FILE = 64 * 2**20
_MAX_METRICS = 200


def collect(files: Sequence[Path], output: str) -> dict[str, float]:
    """The metrics of a run by name, from the files that it wrote and the end of its output."""
    metrics: dict[str, float] = {}
    for source in (from_output(output), last_scalars(files), from_sacred(files)):
        for name, value in source.items():
            if len(metrics) < _MAX_METRICS:
                metrics.setdefault(name, value)
    return metrics


def from_output(output: str) -> dict[str, float]:
    """The numbers of the last line that is a JSON object with a number in it."""
    for line in reversed(output.splitlines()):
        line = line.strip()
        if not (line.startswith("{") and line.endswith("}")):
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if numbers := dict(_numbers(entry)):
            return numbers
    return {}


def from_sacred(files: Sequence[Path]) -> dict[str, float]:
    """The last value of each metric in metrics.json, and the result in run.json."""
    metrics: dict[str, float] = {}
    for path in (path for path in files if path.name == "metrics.json"):
        for name, series in _read(path).items():
            values = series.get("values") if isinstance(series, dict) else None
            if isinstance(values, list) and values and (number := _number(values[-1])) is not None:
                metrics[str(name)] = number
    for path in (path for path in files if path.name == "run.json"):
        result = _read(path).get("result")
        if isinstance(result, dict):
            metrics.update((f"result.{name}", value) for name, value in _numbers(result))
        elif (number := _number(result)) is not None:
            metrics["result"] = number
    return metrics


def _numbers(entry: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    if not isinstance(entry, dict):
        return
    for name, value in entry.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif (number := _number(value)) is not None:
            yield f"{prefix}{name}", number


def _number(value: Any) -> float | None:
    """Sacred stores numpy's numbers as {"dtype": ..., "value": ...}."""
    if isinstance(value, dict) and "value" in value:
        value = value["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # NaN would not survive strict JSON, and has no place in an order.
    return value if math.isfinite(value) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_FILE:
            return {}
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
