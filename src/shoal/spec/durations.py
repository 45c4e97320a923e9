"""Lengths of time as people write them."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")
_SECONDS_IN = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """The seconds in text like 90s, 15m or 2h; none in `off`. Raises ValueError for other text."""
    if text == "off":
        return 0.0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("must be a time like 90s, 15m or 2h, or off")
    return float(found[1]) * _SECONDS_IN[found[2]]
