"""Amounts of US dollars as text, in one format everywhere."""

from __future__ import annotations

_SMALL = 0.01


def dollars(amount: float) -> str:
    """An amount with two decimals, such as $0.10; below a cent with two significant digits."""
    if 0 < amount < _SMALL:
        return f"${amount:.2g}"
    return f"${amount:,.2f}"


def per_hour(price: float) -> str:
    """A price per hour, such as $0.10/h."""
    return f"{dollars(price)}/h"
