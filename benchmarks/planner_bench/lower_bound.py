"""A lower bound on the price of a mix: the linear relaxation.

Instances and placements may be fractional, and every resource of an instance can be used
completely. The bound is a solution of the dual by the simplex method: item prices such that no
instance, however filled, is worth more than it costs. By weak duality it is a bound even if the
method stops early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]


def lower_bound(
    instance_types: Sequence[tuple[Resources, float]], demand: Sequence[tuple[Resources, int]]
) -> float:
    """The lowest possible price of any mix that holds the demand."""
    names = sorted({name for need, _ in demand for name in need})
    types = [([m.get(n, 0.0) for n in names], price) for m, price in instance_types]
    items = [([need.get(n, 0.0) for n in names], count) for need, count in demand]
    scale = [max(max(m[r] for m, _ in types), 1e-9) for r in range(len(names))]
    # Variables: a price for each item, then for each unit of each resource of each instance type.
    width = len(items) + len(types) * len(names)
    rows: list[list[float]] = []
    limits: list[float] = []
    for k, (capacity, price) in enumerate(types):
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
    objective = [float(count) for _, count in items] + [0.0] * (width - len(items))
    return _maximum(rows, limits, objective)


def _maximum(rows: list[list[float]], limits: list[float], objective: list[float]) -> float:
    """The maximum of the objective with every row within its limit and no negative variables. All
    limits are at least zero, so that zero is feasible; Bland's rule prevents cycling."""
    height, width = len(rows), len(objective)
    table = [
        [*row, *(1.0 if i == j else 0.0 for j in range(height)), limit]
        for i, (row, limit) in enumerate(zip(rows, limits, strict=True))
    ]
    reduced_costs = [-g for g in objective] + [0.0] * (height + 1)
    basis = [width + i for i in range(height)]
    for _ in range(20_000):
        entering = next((j for j in range(width + height) if reduced_costs[j] < -1e-9), None)
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
        factor = reduced_costs[entering]
        reduced_costs = [v - factor * p for v, p in zip(reduced_costs, table[leaving], strict=True)]
        basis[leaving] = entering
    return reduced_costs[-1]
