"""Plain-text tables, and short forms of durations and numbers."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

# Narrower than this, the last column is not wrapped: the terminal does that as well.
_MIN_LAST_WIDTH = 16
_CONTINUATION = "    "


def terminal_width() -> int | None:
    """The width of the terminal that standard output is; None if it is a file or a pipe, where
    lines are as long as they need to be."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """A table without borders. Cells may be styled: escape codes do not count as width. With
    `width`, the last column is wrapped to fit, and its cells must not be styled."""
    table = [[click.style(cell, dim=True) for cell in header], *rows]
    widths = [max(_width(row[n]) for row in table) for n in range(len(header))]
    last = sum(widths[:-1]) + 2 * (len(widths) - 1)
    lines = []
    for row in table:
        line = "  ".join(_pad(c, w) for c, w in zip(row, widths, strict=True)).rstrip()
        if width is None or _width(line) <= width:
            lines.append(line)
        else:
            before = "  ".join(_pad(c, w) for c, w in zip(row[:-1], widths, strict=False))
            lines += _wrapped(before, row[-1], last, width)
    return lines


def _wrapped(before: str, text: str, column: int, width: int) -> list[str]:
    """A line whose last cell is continued in its column, or below the line if that is too narrow
    for it."""
    if width - column >= _MIN_LAST_WIDTH:
        first, *rest = textwrap.wrap(text, width - column) or [""]
        return [f"{before}  {first}", *(" " * column + line for line in rest)]
    below = textwrap.wrap(text, max(_MIN_LAST_WIDTH, width - len(_CONTINUATION)))
    return [before.rstrip(), *(_CONTINUATION + line for line in below)]


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
