"""What a mix of machines must cost at the very least: the linear relaxation.

Machines and placements may be fractions, and every resource of a machine can be used to its end.
The bound is a solution of the dual, by the simplex method: item prices such that no machine,
however filled, is worth more than it costs. By weak duality it is a bound even if the method
stopped early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]


def lower_bound(
    machines: Sequence[tuple[Resources, float]], demand: Sequence[tuple[Resources, int]]
) -> float:
    """The least price for holding the demand, for any mix."""
    names = sorted({name for need, _ in demand for name in need})
    kinds = [([m.get(n, 0.0) for n in names], price) for m, price in machines]
    items = [([need.get(n, 0.0) for n in names], count) for need, count in demand]
    scale = [max(max(m[r] for m, _ in kinds), 1e-9) for r in range(len(names))]
    # Variables: a price for each item, then for each unit of each resource of each machine.
    width = len(items) + len(kinds) * len(names)
    rows: list[list[float]] = []
    limits: list[float] = []
    for k, (capacity, price) in enumerate(kinds):
        row = [0.0] * width
        for r in range(len(names)):
            row[len(items) + k * len(names) + r] = capacity[r] / scale[r]
        rows.append(row)
        limits.append(price)
        for i, (need, _) in enumerate(items):
            if all(n <= c for n, c in zip(need, capacity, strict=True)):
                row = [0.0] * width
                row[i] = 1.0
                for r in range(len(names)):
                    row[len(items) + k * len(names) + r] = -need[r] / scale[r]
                rows.append(row)
                limits.append(0.0)
    gains = [float(count) for _, count in items] + [0.0] * (width - len(items))
    return _maximum(rows, limits, gains)


def _maximum(rows: list[list[float]], limits: list[float], gains: list[float]) -> float:
    """The greatest gain with every row within its limit and nothing negative. All limits are at
    least zero, so that zero is a solution to start from; Bland's rule keeps it from cycling."""
    height, width = len(rows), len(gains)
    table = [
        [*row, *(1.0 if i == j else 0.0 for j in range(height)), limit]
        for i, (row, limit) in enumerate(zip(rows, limits, strict=True))
    ]
    goal = [-g for g in gains] + [0.0] * (height + 1)
    basis = [width + i for i in range(height)]
    for _ in range(20_000):
        entering = next((j for j in range(width + height) if goal[j] < -1e-9), None)
        if entering is None:
            break
        ratios = [
            (table[i][-1] / table[i][entering], basis[i], i)
            for i in range(height)
            if table[i][entering] > 1e-9
        ]
        if not ratios:
            break
        _, _, leaving = min(ratios)
        pivot = table[leaving][entering]
        table[leaving] = [v / pivot for v in table[leaving]]
        for i in range(height):
            factor = table[i][entering]
            if i != leaving and factor:
                table[i] = [v - factor * p for v, p in zip(table[i], table[leaving], strict=True)]
        factor = goal[entering]
        goal = [v - factor * p for v, p in zip(goal, table[leaving], strict=True)]
        basis[leaving] = entering
    return goal[-1]
