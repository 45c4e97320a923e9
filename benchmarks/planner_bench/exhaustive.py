"""The cheapest mix for a small case, by trying every mix that is cheaper than a known one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]
_UNIT = 10_000


def optimum(
    instance_types: Sequence[tuple[Resources, float]],
    demand: Sequence[tuple[Resources, int]],
    upper_bound: float,
) -> float:
    """The lowest price at which everything fits; `upper_bound` is a price at which it does."""
    names = sorted({name for need, _ in demand for name in need})

    def vector(amounts: Resources) -> tuple[int, ...]:
        return tuple(round(amounts.get(n, 0.0) * _UNIT) for n in names)

    types = sorted((price, vector(resources)) for resources, price in instance_types)
    tasks = sorted((vector(need) for need, n in demand for _ in range(n)), reverse=True)
    total = [sum(task[r] for task in tasks) for r in range(len(names))]
    best = upper_bound

    def mixes(first: int, chosen: list[tuple[int, ...]], cost: float) -> None:
        nonlocal best
        capacity = [sum(c[r] for c in chosen) for r in range(len(names))]
        if all(h >= t for h, t in zip(capacity, total, strict=True)) and _packs(tasks, chosen):
            best = cost
            return
        for index in range(first, len(types)):
            price, free = types[index]
            if cost + price < best - 1e-9:
                mixes(index, [*chosen, free], cost + price)

    mixes(0, [], 0.0)
    return best


def _packs(tasks: Sequence[tuple[int, ...]], bins: Sequence[tuple[int, ...]]) -> bool:
    """Whether the tasks fit, trying every bin for each; states that failed are not tried again."""
    failed: set[tuple[int, tuple[tuple[int, ...], ...]]] = set()

    def place(index: int, free: tuple[tuple[int, ...], ...]) -> bool:
        if index == len(tasks):
            return True
        if (index, free) in failed:
            return False
        task = tasks[index]
        for b in range(len(free)):
            if (b and free[b] == free[b - 1]) or any(
                n > f for n, f in zip(task, free[b], strict=True)
            ):
                continue
            left = tuple(f - n for n, f in zip(task, free[b], strict=True))
            if place(index + 1, tuple(sorted((*free[:b], left, *free[b + 1 :])))):
                return True
        failed.add((index, free))
        return False

    return place(0, tuple(sorted(bins)))
