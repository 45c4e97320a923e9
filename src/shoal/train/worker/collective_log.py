"""The results of collectives outside of loops, for workers that run the same lines later."""

from __future__ import annotations

import copy
from typing import Any


class CollectiveLog:
    """Results of all workers, by epoch, and how many of them this script has come to."""

    def __init__(self) -> None:
        self.results: dict[int | None, list[Any]] = {}
        self._reached: dict[int | None, int] = {}

    def begin(self, epoch: int | None) -> None:
        self._reached[epoch] = 0

    def has_next(self, epoch: int | None) -> bool:
        return self._reached.get(epoch, 0) < len(self.results.get(epoch, []))

    def next(self, epoch: int | None) -> Any:
        reached = self._reached.get(epoch, 0)
        self._reached[epoch] = reached + 1
        return copy.deepcopy(self.results[epoch][reached])

    def add(self, epoch: int | None, result: Any) -> None:
        self.results.setdefault(epoch, []).append(copy.deepcopy(result))
        self._reached[epoch] = self._reached.get(epoch, 0) + 1

    def forget_before(self, epoch: int) -> None:
        for entries in (self.results, self._reached):
            for old in [at for at in entries if at is not None and at < epoch]:
                del entries[old]
