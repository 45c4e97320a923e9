"""A metric over a parameter: as text, or as SVG. A few points do not justify a plotting library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from shoal.core.errors import ConfigError
from shoal.jobs.sweep.journal import Result
from shoal.jobs.sweep.table import metric_names, parameter_names, short, value_of

_COLUMNS, _ROWS = 64, 14
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 420, 80, 30, 40, 60
# From this ratio on, positive values are on a logarithmic scale.
_LOG_RATIO = 100.0


@dataclass(frozen=True)
class Axis:
    """The position of a value between 0 and 1."""

    name: str
    low: float
    high: float
    is_log: bool

    @staticmethod
    def of(name: str, values: Sequence[float]) -> Axis:
        low, high = min(values), max(values)
        return Axis(name, low, high, low > 0 and high / low >= _LOG_RATIO)

    def position(self, value: float) -> float:
        if self.high == self.low:
            return 0.5
        scale: Callable[[float], float] = math.log if self.is_log else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))

    @property
    def label(self) -> str:
        return f"{self.name} (log)" if self.is_log else self.name


@dataclass(frozen=True)
class Plot:
    x: Axis
    y: Axis
    points: tuple[tuple[float, float], ...]


def plot_of(results: Sequence[Result], parameter: str = "", metric: str = "") -> Plot | None:
    """The metric over the parameter; by default the first of each that varies. None if there is
    nothing to draw."""
    metrics = [metric] if metric else metric_names(results)[:1]
    parameters = [parameter] if parameter else parameter_names(results)
    for y_name in metrics:
        for x_name in parameters:
            points = [
                (float(x), float(y))
                for result in results
                if _is_number(x := value_of(result, x_name))
                and _is_number(y := result["metrics"].get(y_name))
            ]
            if parameter and not points:
                raise ConfigError(f"no run has numbers for both {x_name} and {y_name}")
            if len({x for x, _ in points}) > 1 or (parameter and points):
                x_axis = Axis.of(x_name, [x for x, _ in points])
                return Plot(x_axis, Axis.of(y_name, [y for _, y in points]), tuple(points))
    return None


def as_text(plot: Plot) -> list[str]:
    counts = [[0] * _COLUMNS for _ in range(_ROWS)]
    for x, y in plot.points:
        column = round(plot.x.position(x) * (_COLUMNS - 1))
        counts[_ROWS - 1 - round(plot.y.position(y) * (_ROWS - 1))][column] += 1
    labels = [""] * _ROWS
    labels[0], labels[-1] = short(plot.y.high), short(plot.y.low)
    width = max(len(label) for label in labels)
    lines = [plot.y.label]
    for label, row in zip(labels, counts, strict=True):
        marks = "".join("·•●"[min(count, 3) - 1] if count else " " for count in row).rstrip()
        lines.append(f"{label.rjust(width)} │{marks}")
    lines.append(" " * width + " └" + "─" * _COLUMNS)
    low, high = short(plot.x.low), short(plot.x.high)
    middle = plot.x.label.center(_COLUMNS - len(low) - len(high))
    lines.append(" " * (width + 2) + low + middle + high)
    return lines


def as_svg(plot: Plot) -> str:
    def x(value: float) -> float:
        return _LEFT + plot.x.position(value) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - plot.y.position(value) * (_HEIGHT - _BOTTOM - _TOP)

    bottom = _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_LEFT},{_TOP} V{bottom} H{_WIDTH - _RIGHT}" fill="none" stroke="#999"/>',
    ]
    for value in sorted({plot.x.low, plot.x.high}):
        parts.append(
            f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{short(value)}</text>'
        )
    for value in sorted({plot.y.low, plot.y.high}):
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{short(value)}</text>'
        )
    parts += [
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 16}" text-anchor="middle">'
        f"{escape(plot.x.label)}</text>",
        f'<text x="{_LEFT}" y="22">{escape(plot.y.label)}</text>',
    ]
    parts += [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4" fill="#2563eb" fill-opacity="0.6"/>'
        for a, b in plot.points
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
