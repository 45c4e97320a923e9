"""How far a sweep is, and how long it will take. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """`running` counts the runs for which the cluster's resources are in use; the rest of the
    unfinished ones wait. `seconds_left` is None until a run has ended."""

    total: int
    done: int
    failed: int
    running: int = 0
    nodes: int = 0
    seconds_left: float | None = None

    @property
    def waiting(self) -> int:
        return max(0, self.total - self.done - self.running)

    def to_entry(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Pace:
    """The duration of the runs so far."""

    ended: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.ended += 1
        self.seconds += seconds

    def seconds_left(self, unfinished: int, running: int) -> float | None:
        """The unfinished runs at the mean duration, as many in parallel as run now."""
        if not self.ended:
            return None
        return unfinished * (self.seconds / self.ended) / max(1, running)
