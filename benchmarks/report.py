"""The last line of every benchmark: one JSON object, always with the same keys."""

from __future__ import annotations

import json


def report(
    name: str,
    *,
    value: float,
    unit: str,
    peer: float | None,
    limit: float | None,
    ratio: float,
    bar: str,
    passed: bool,
) -> None:
    """Print the closing line. `peer` is another program's figure and `limit` the best possible one,
    both in `unit` and measured in this run; `bar` describes the target."""
    record = {
        "name": name,
        "value": _rounded(value),
        "unit": unit,
        "peer": _rounded(peer),
        "limit": _rounded(limit),
        "ratio": _rounded(ratio),
        "bar": bar,
        "pass": passed,
    }
    print(json.dumps(record), flush=True)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
