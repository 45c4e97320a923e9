"""What accumulators hold: sums over all workers, and what this worker has added since.

Each boundary between two steps carries what every worker has added in the step before, so that all
workers hold the same totals and a lost worker takes at most its last step along. What a worker adds
is filed under the step (the tick) in which it was added, so a dropped step can be undone.
"""

from __future__ import annotations

import copy
from typing import Any

# {accumulator: {key: value}}
Deltas = dict[str, dict[Any, Any]]


class Accumulation:
    def __init__(self) -> None:
        self.totals: Deltas = {}
        self.merged_ticks = 0  # the totals hold what all workers added in the ticks before this
        self._local: dict[int, Deltas] = {}

    def add(self, tick: int, accumulator: str, key: Any, value: Any) -> None:
        entries = self._local.setdefault(tick, {}).setdefault(accumulator, {})
        entries[key] = entries[key] + value if key in entries else value

    def added_before(self, tick: int) -> Deltas:
        """What this worker added before `tick` and what is not in the totals yet."""
        result: Deltas = {}
        for at in sorted(self._local):
            if at < tick:
                merge(result, self._local[at])
        return result

    def merge_from_all(self, deltas: list[Deltas], before: int) -> None:
        """Add what all workers, in the order of their ranks, have added before tick `before`."""
        for each in deltas:
            merge(self.totals, each)
        self.merged_ticks = before
        self._local = {at: each for at, each in self._local.items() if at >= before}

    def forget(self, accumulators: list[str]) -> None:
        """Nothing is added to these any more, and their totals are not read."""
        for name in accumulators:
            self.totals.pop(name, None)

    def undo(self, tick: int) -> dict[int, Deltas]:
        """Take out, and return, what this worker added in `tick` and later."""
        undone = {at: each for at, each in self._local.items() if at >= tick}
        self._local = {at: each for at, each in self._local.items() if at < tick}
        return undone

    def put_back(self, undone: dict[int, Deltas]) -> None:
        self._local.update(undone)

    def adopt(self, totals: Deltas, merged_ticks: int, kept_ticks: int) -> None:
        """Take over another worker's totals. What this worker added between `merged_ticks` and
        `kept_ticks` is not in them, and stays."""
        self.totals = copy.deepcopy(totals)
        self.merged_ticks = merged_ticks
        self._local = {
            at: each for at, each in self._local.items() if merged_ticks <= at < kept_ticks
        }


def merge(into: Deltas, deltas: Deltas) -> None:
    for accumulator, entries in deltas.items():
        target = into.setdefault(accumulator, {})
        for key, value in entries.items():
            target[key] = target[key] + value if key in target else copy.deepcopy(value)
