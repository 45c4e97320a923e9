"""Exponential backoff: the delay before the next attempt grows with every failure, up to a limit.

Nothing here sleeps; callers wait on their own clock.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

# Keeps the power finite. Every limit in use is reached long before.
_MAX_EXPONENT = 64


def backoff_delay(failures: int, first: float, longest: float, factor: float = 2.0) -> float:
    """Seconds to wait after so many earlier failures: `first` after none, `factor` times as long
    after each, and never more than `longest`."""
    return min(first * factor ** min(failures, _MAX_EXPONENT), longest)


def backoff_delays(
    first: float, longest: float, factor: float = 2.0, jitter: tuple[float, float] = (1.0, 1.0)
) -> Iterator[float]:
    """The delays between attempts, endlessly. Each is multiplied by a random number in the range
    `jitter`, so that clients that failed together do not retry together."""
    for failures in itertools.count():
        yield backoff_delay(failures, first, longest, factor) * random.uniform(*jitter)


class Backoff:
    """When something that failed may be tried again. It counts failures since the last `reset`;
    `is_active` holds until the delay after the latest failure is over."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self.reset()

    def reset(self) -> None:
        """Forget all failures, usually after a success. The next attempt may start now."""
        self._failures = 0
        self._until = float("-inf")

    def record_failure(self, now: float) -> None:
        """Count a failure, and block the next attempt for longer than the one before."""
        self._until = now + backoff_delay(self._failures, self._first, self._longest)
        self._failures += 1

    def is_active(self, now: float) -> bool:
        """Whether it is too early for another attempt."""
        return now < self._until
