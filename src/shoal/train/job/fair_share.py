"""What a job releases when other training jobs on the cluster wait for resources. Pure.

Each job's controller decides for itself, from the placement groups that it sees. A job that has
more workers than another one that waits releases what is waited for, down to an equal share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A cluster that can grow launches a node for those that wait; a job that cannot wait so long
# ends what others have.
_PATIENCE_S = 15.0
_RETURN_S = 60.0


@dataclass(frozen=True)
class JobUse:
    """Workers of a job that have resources, and workers that wait for them."""

    placed: int
    waiting: int


class FairShare:
    """How many workers this job may have at most; None if no other job waits."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self._waiting_since: float | None = None
        self._waited_at = 0.0

    def update(self, own: JobUse, others: Mapping[str, JobUse], minimum: int, now: float) -> bool:
        """Whether the limit has changed."""
        before = self.limit
        waiting = {
            job: use for job, use in others.items() if use.waiting and use.placed < own.placed
        }
        if waiting:
            self._waited_at = now
            self._waiting_since = now if self._waiting_since is None else self._waiting_since
            if now - self._waiting_since >= _PATIENCE_S:
                self.limit = _limit(own, others, waiting, minimum, before)
        else:
            self._waiting_since = None
            if self.limit is not None and now - self._waited_at >= _RETURN_S:
                self.limit = None
        return self.limit != before


def _limit(
    own: JobUse,
    others: Mapping[str, JobUse],
    waiting: Mapping[str, JobUse],
    minimum: int,
    before: int | None,
) -> int | None:
    jobs = 1 + sum(1 for use in others.values() if use.placed or use.waiting)
    placed = own.placed + sum(use.placed for use in others.values())
    equal = -(-placed // jobs)
    asked = own.placed - sum(use.waiting for use in waiting.values())
    limit = max(1, minimum, equal, asked)
    return limit if limit < own.placed else before
