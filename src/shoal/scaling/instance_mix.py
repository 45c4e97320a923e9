"""The cheapest mix of new machines for work that has no room, as near as can be had quickly.

Small cases are solved exactly. Larger ones are filled greedily a few times, each time with
prices for the items that the last result suggests, and the worst filled machines of the best
result are then replaced exactly, a handful at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.scaling.column_generation import WIDEST, FractionalMix
from shoal.scaling.exact_search import Bin, cheapest_cover
from shoal.scaling.greedy_packing import Filled, Filler, Supply, worths
from shoal.scaling.resource_vectors import Item, ResourceSpace

EXACT_UP_TO = 8
WINDOW = 5
# How much greedy work, in items x supplies, is worth repeating.
EFFORT = 8_000
# How many fillings may be looked at in the search for a fractional mix.
FILLINGS = 1_500


@dataclass(frozen=True)
class Mix:
    """How many of each supply, what each costs, and what is left without a place."""

    machines: tuple[int, ...]
    left: tuple[int, ...]
    cost: float

    @property
    def total(self) -> int:
        """How many machines in all."""
        return sum(self.machines)


@dataclass(frozen=True)
class Task:
    """One question: items to hold, supplies to choose from, and the limits on them."""

    frame: ResourceSpace
    items: Sequence[Item]
    supplies: Sequence[Supply]
    limits: Sequence[float]
    slots: float = math.inf


def choose(task: Task) -> Mix:
    """The best mix found."""
    worth = worths(task.frame, task.items, task.supplies)
    mix, filled = _greedy(task, worth)
    if not any(mix.left) and mix.total <= EXACT_UP_TO:
        return exact(task, (), mix)
    if len(task.items) <= WIDEST:
        other, other_filled = _rounded(task)
        if _rank(other, worth) < _rank(mix, worth):
            mix, filled = other, other_filled
    return mix if any(mix.left) else _improved(task, mix, filled)


def least_left(task: Task) -> tuple[int, ...]:
    """What no place is found for when the price does not matter: the machines are there."""
    worth = worths(task.frame, task.items, task.supplies)
    mix, _ = _greedy(task, worth, any_will_do=True)
    if any(mix.left) and len(task.items) <= WIDEST:
        mix = min(mix, _rounded(task)[0], key=lambda other: _rank(other, worth))
    return mix.left


def _rounded(task: Task) -> tuple[Mix, list[Filled]]:
    """The fractional mix, rounded down, with the greedy way for what that leaves."""
    fractional = FractionalMix(task.frame, task.items, task.supplies)
    fractional.improve(FILLINGS)
    filled: list[Filled] = []
    left = [item.count for item in task.items]
    limits = list(task.limits)
    slots = task.slots
    rows = zip(fractional.supply, fractional.patterns, fractional.amounts, strict=True)
    for supply, pattern, amount in sorted(rows, key=lambda row: -row[2]):
        group = task.supplies[supply].group
        repeats = min(left[item] // copies for item, copies in pattern)
        machines = int(min(amount + 1e-6, repeats, limits[group], slots))
        if machines > 0:
            filled.append(Filled(supply, pattern, machines))
            limits[group] -= machines
            slots -= machines
            for item, copies in pattern:
                left[item] -= copies * machines
    rest = [task.frame.resized(i, n) for i, n in zip(task.items, left, strict=True)]
    _, more = _greedy(Task(task.frame, rest, task.supplies, limits, slots), fractional.worth)
    for f in more:
        for item, copies in f.pattern:
            left[item] -= copies * f.machines
    filled += more
    return _mix(task, filled, left), filled


def _greedy(
    task: Task, worth: Sequence[float], *, any_will_do: bool = False
) -> tuple[Mix, list[Filled]]:
    """The cheapest of several fillings; when the limit on machines is in the way, the one that
    leaves least, with larger machines made to look cheaper. If any will do, the first that
    leaves nothing."""
    size = max(1, len(task.items) * len(task.supplies))
    rounds = max(1, min(6, EFFORT // size))
    dearest = max((s.price for s in task.supplies), default=0.0)
    found: list[tuple[Mix, list[Filled]]] = []
    for surcharge in (0.0, dearest, dearest * 100):
        prices = list(worth)
        for _ in range(rounds):
            filler = Filler(task.frame, task.items, task.supplies, prices)
            filled = filler.run(task.limits, task.slots, surcharge)
            found.append((_mix(task, filled, filler.left), filled))
            if any_will_do and not any(filler.left):
                return found[-1]
            if rounds > 1:
                prices = _repriced(task, filled, prices)
        if math.isinf(task.slots) or not all(any(mix.left) for mix, _ in found):
            break
    return min(found, key=lambda result: _rank(result[0], worth))


def _rank(mix: Mix, worth: Sequence[float]) -> tuple[float, float, tuple[int, ...]]:
    left = sum(n * w for n, w in zip(mix.left, worth, strict=True))
    return (left, round(mix.cost, 9), mix.machines)


def _mix(task: Task, filled: Sequence[Filled], left: Sequence[int]) -> Mix:
    machines = [0] * len(task.supplies)
    for f in filled:
        machines[f.supply] += f.machines
    return _counted(task, machines, left)


def _counted(task: Task, machines: Sequence[int], left: Sequence[int]) -> Mix:
    cost = sum(n * s.price for n, s in zip(machines, task.supplies, strict=True))
    return Mix(tuple(machines), tuple(left), cost)


def _repriced(task: Task, filled: Sequence[Filled], worth: Sequence[float]) -> list[float]:
    """Each item's share of what its machines cost: items that ended on badly filled machines
    are worth more attention the next time."""
    paid = [0.0] * len(worth)
    placed = [0] * len(worth)
    for f in filled:
        total = sum(worth[item] * copies for item, copies in f.pattern)
        rate = task.supplies[f.supply].price / total if total else 0.0
        for item, copies in f.pattern:
            paid[item] += worth[item] * copies * rate * f.machines
            placed[item] += copies * f.machines
    return [(w + p / n) / 2 if n else w for w, p, n in zip(worth, paid, placed, strict=True)]


def exact(task: Task, bins: Sequence[Bin], mix: Mix) -> Mix:
    """The cheapest mix that holds the items together with some bins that are there already, if
    it can be found and is cheaper than the one at hand."""
    better = cheapest_cover(
        task.frame, task.items, bins, task.supplies, task.limits, task.slots, mix.cost
    )
    return mix if better is None else _counted(task, better, [0] * len(task.items))


def _improved(task: Task, mix: Mix, filled: Sequence[Filled]) -> Mix:
    """Take the machines with the least worth on them out, a few at a time, and look for a
    cheaper set that holds the same items."""
    worth = worths(task.frame, task.items, task.supplies)

    def efficiency(f: Filled) -> float:
        carried = sum(worth[item] * copies for item, copies in f.pattern)
        return carried / task.supplies[f.supply].price

    singles = [Filled(f.supply, f.pattern, 1) for f in filled for _ in range(min(f.machines, 3))]
    singles.sort(key=lambda f: (efficiency(f), f.supply, f.pattern))
    machines = list(mix.machines)
    for start in range(0, min(len(singles), 8 * WINDOW), WINDOW):
        window = singles[start : start + WINDOW]
        counts = [0] * len(task.items)
        before = [0] * len(task.supplies)
        for f in window:
            before[f.supply] += 1
            for item, copies in f.pattern:
                counts[item] += copies
        items = [task.frame.resized(i, n) for i, n in zip(task.items, counts, strict=True)]
        limits = list(task.limits)
        for s, supply in enumerate(task.supplies):
            limits[supply.group] -= machines[s] - before[s]
        cost = sum(task.supplies[f.supply].price for f in window)
        slots = task.slots - sum(machines) + len(window)
        after = cheapest_cover(
            task.frame, items, (), task.supplies, limits, slots, cost, steps=200, pack_steps=300
        )
        if after is not None:
            machines = [m - b + a for m, b, a in zip(machines, before, after, strict=True)]
    return _counted(task, machines, mix.left)
