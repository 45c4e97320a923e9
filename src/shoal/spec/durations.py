"""Durations as text: 90s, 15m, 2h."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")
_SECONDS_IN = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """The seconds in a duration like 90s, 15m or 2h; 0 for `off`. Raises ValueError otherwise."""
    if text == "off":
        return 0.0
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("must be a duration like 90s, 15m or 2h, or off")
    return float(match[1]) * _SECONDS_IN[match[2]]


def duration_text(duration: float) -> str:
    """A duration as `seconds` reads it: 90s, 15m, 2h, or off."""
    if not duration:
        return "off"
    unit = next((u for u in ("h", "m") if duration % _SECONDS_IN[u] == 0), "s")
    return f"{duration / _SECONDS_IN[unit]:g}{unit}"
