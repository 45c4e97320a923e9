"""Leaves alone for a while what has failed: longer each time, and never for ever."""

from __future__ import annotations

# So often the pause doubles.
_DOUBLINGS = 10


class Backoff:
    """Until when something is not to be tried again."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self.over()

    def over(self) -> None:
        """It may be tried now, and what failed before is forgotten."""
        self._failures = 0
        self._until = float("-inf")

    def after_failure(self, now: float) -> None:
        """It failed once more."""
        pause = self._first * 2 ** min(self._failures, _DOUBLINGS)
        self._failures += 1
        self._until = now + min(pause, self._longest)

    def goes_on(self, now: float) -> bool:
        return now < self._until
