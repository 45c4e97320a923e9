"""The cheapest mix for a small case, by trying every mix that is cheaper than a known one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Resources = Mapping[str, float]
_UNIT = 10_000


def optimum(
    machines: Sequence[tuple[Resources, float]],
    demand: Sequence[tuple[Resources, int]],
    known: float,
) -> float:
    """The least price at which everything fits; `known` is a price at which it does."""
    names = sorted({name for need, _ in demand for name in need})

    def vector(amounts: Resources) -> tuple[int, ...]:
        return tuple(round(amounts.get(n, 0.0) * _UNIT) for n in names)

    kinds = sorted((price, vector(resources)) for resources, price in machines)
    tasks = sorted((vector(need) for need, n in demand for _ in range(n)), reverse=True)
    total = [sum(task[r] for task in tasks) for r in range(len(names))]
    best = known

    def mixes(first: int, chosen: list[tuple[int, ...]], cost: float) -> None:
        nonlocal best
        have = [sum(c[r] for c in chosen) for r in range(len(names))]
        if all(h >= t for h, t in zip(have, total, strict=True)) and _packs(tasks, chosen):
            best = cost
            return
        for index in range(first, len(kinds)):
            price, room = kinds[index]
            if cost + price < best - 1e-9:
                mixes(index, [*chosen, room], cost + price)

    mixes(0, [], 0.0)
    return best


def _packs(tasks: Sequence[tuple[int, ...]], bins: Sequence[tuple[int, ...]]) -> bool:
    """Whether the tasks fit, trying every bin for each; states seen before are not tried again."""
    dead: set[tuple[int, tuple[tuple[int, ...], ...]]] = set()

    def lay(index: int, room: tuple[tuple[int, ...], ...]) -> bool:
        if index == len(tasks):
            return True
        if (index, room) in dead:
            return False
        task = tasks[index]
        for b in range(len(room)):
            if (b and room[b] == room[b - 1]) or any(
                n > f for n, f in zip(task, room[b], strict=True)
            ):
                continue
            left = tuple(f - n for n, f in zip(task, room[b], strict=True))
            if lay(index + 1, tuple(sorted((*room[:b], left, *room[b + 1 :])))):
                return True
        dead.add((index, room))
        return False

    return lay(0, tuple(sorted(bins)))
