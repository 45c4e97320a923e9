"""Plain-text tables, and short forms of durations and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import click


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table without borders. Cells may be styled: escape codes do not count as width."""
    table = [[click.style(cell, dim=True) for cell in header], *rows]
    widths = [max(_width(row[n]) for row in table) for n in range(len(header))]
    return [
        "  ".join(_pad(c, w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def number(value: float) -> str:
    """A number with at most two decimals, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def gib(value: float) -> str:
    return f"{value / 2**30:.1f}G"


def _width(cell: str) -> int:
    return len(click.unstyle(cell))


def _pad(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))
