"""Amounts of money as text."""

from __future__ import annotations

import pytest

from shoal.core.money import per_hour


@pytest.mark.parametrize(
    ("price", "text"),
    [
        (0.096, "$0.10/h"),
        (0.4, "$0.40/h"),
        (1234.5, "$1,234.50/h"),
        (0.0052, "$0.0052/h"),
        (0.0, "$0.00/h"),
    ],
)
def test_prices_have_one_format(price: float, text: str) -> None:
    assert per_hour(price) == text
