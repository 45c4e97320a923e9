"""The pending demand without work that has just started.

Ray reports free resources and pending work separately: one reading may show a node as taken and the
task that took it as still pending. Planned as it is, the task would get a node of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.ray_runtime.gcs_client import GcsReading
from shoal.scaling.demand import Demand, Gang, Request, Shape

# So long after resources were taken, the work that took them may still be reported as pending.
SETTLE_S = 2.0


@dataclass
class _Taken:
    """Resources of one node that were taken at a time."""

    at: float
    amounts: dict[str, float]


class SettledDemand:
    """Compares each reading with the one before."""

    def __init__(self) -> None:
        self._available: dict[str, Mapping[str, float]] | None = None
        self._pending: Counter[Request | Gang] = Counter()
        self._taken: list[_Taken] = []

    def of(self, reading: GcsReading, now: float) -> Demand:
        """The demand of a reading, without as much as fits into what was taken in the last
        moments and has not left the pending work yet."""
        self._taken = [taken for taken in self._taken if now - taken.at < SETTLE_S]
        if self._available is not None:
            for id, node in reading.nodes.items():
                before = self._available.get(id, node.total)
                amounts = {
                    name: amount - node.available.get(name, 0.0)
                    for name, amount in before.items()
                    if amount > node.available.get(name, 0.0)
                }
                if amounts:
                    self._taken.append(_Taken(now, amounts))
        self._available = {id: node.available for id, node in reading.nodes.items()}
        demand, pending = reading.demand, self._pending
        rows: list[Request | Gang] = [*demand.requests, *demand.gangs]
        self._pending = Counter()
        for row in rows:
            self._pending[_single(row)] += row.count
        if not self._taken:
            return demand
        # Work that is no longer pending has started: it explains what was taken.
        for single, count in pending.items():
            _start(self._taken, _shapes(single), count - self._pending[single])
        taken = [_Taken(t.at, dict(t.amounts)) for t in self._taken]
        requests = [
            replace(r, count=r.count - _start(taken, (r.shape,), r.count)) for r in demand.requests
        ]
        gangs = [
            replace(g, count=g.count - _start(taken, g.bundles, g.count)) for g in demand.gangs
        ]
        return replace(
            demand,
            requests=tuple(r for r in requests if r.count),
            gangs=tuple(g for g in gangs if g.count),
        )


def _single(row: Request | Gang) -> Request | Gang:
    return replace(row, count=1)


def _shapes(row: Request | Gang) -> tuple[Shape, ...]:
    return (row.shape,) if isinstance(row, Request) else row.bundles


def _start(taken: list[_Taken], shapes: tuple[Shape, ...], count: int) -> int:
    """How many copies of these shapes, up to a count, what was taken can be due to. Uses it up."""
    for started in range(max(0, count)):
        before = [dict(t.amounts) for t in taken]
        if not all(_start_one(taken, shape) for shape in shapes):
            for t, amounts in zip(taken, before, strict=True):
                t.amounts = amounts
            return started
    return max(0, count)


def _start_one(taken: list[_Taken], shape: Shape) -> bool:
    if not shape.resources:
        return False
    for entry in taken:
        if all(entry.amounts.get(name, 0.0) >= amount for name, amount in shape.resources):
            for name, amount in shape.resources:
                entry.amounts[name] -= amount
            return True
    return False
