"""A step chart of node counts as SVG. A few lines do not justify a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from shoal.scaling.simulation import Sample

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 900, 320, 60, 30, 40
_COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706")


def node_counts(series: Sequence[tuple[str, Sequence[Sample]]]) -> str:
    """Workers over time, one line per named series."""
    end = max((s.at for _, samples in series for s in samples), default=0.0) or 1.0
    top = max((s.ready + s.launching for _, samples in series for s in samples), default=0) or 1

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 20) * at / end

    def y(nodes: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * nodes / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for nodes in sorted({0, top // 2, top}):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y(nodes):.1f}" y2="{y(nodes):.1f}" '
            f'stroke="#ddd"/><text x="{_LEFT - 8}" y="{y(nodes) + 4:.1f}" '
            f'text-anchor="end">{nodes:,}</text>'
        )
    for hour in _hours(end):
        parts.append(
            f'<text x="{x(hour * 3600):.1f}" y="{_HEIGHT - 18}" '
            f'text-anchor="middle">{hour:g} h</text>'
        )
    for number, (name, samples) in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        steps, before = [], 0
        for sample in samples:
            nodes = sample.ready + sample.launching
            steps += [f"{x(sample.at):.1f},{y(before):.1f}", f"{x(sample.at):.1f},{y(nodes):.1f}"]
            before = nodes
        parts.append(
            f'<polyline points="{" ".join(steps)}" fill="none" stroke="{colour}" '
            f'stroke-width="1.5"/><text x="{_LEFT + 8 + 260 * number}" y="18" '
            f'fill="{colour}">{escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _hours(end: float) -> list[float]:
    """About six tick marks, at round numbers of hours."""
    step = next((s for s in (0.25, 0.5, 1, 2, 4, 6, 12, 24, 48) if end / 3600 / s <= 7), 168)
    return [n * step for n in range(int(end / 3600 / step) + 1)]
