"""What was said last of each subject, so that what stays as it is is said once."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.controller.state import Decision

# What nobody has had to say for so long is news again.
_SILENCE_SECONDS = 60.0


class DecisionDeduplicator:
    """The last word on every subject, and when it was last true."""

    def __init__(self, decisions: Iterable[Decision], now: float) -> None:
        self._last = {decision.subject: (decision, now) for decision in decisions}

    def news(self, decisions: Iterable[Decision], now: float) -> list[Decision]:
        """Those that differ from the last of their subject. Figures in their words may differ:
        they change all the time."""
        fresh = (entry for entry in self._last.items() if now - entry[1][1] < _SILENCE_SECONDS)
        self._last = dict(fresh)
        found = []
        for decision in decisions:
            before, _ = self._last.get(decision.subject, (None, now))
            if before is None or not _is_same(before, decision):
                found.append(decision)
            self._last[decision.subject] = (decision, now)
        return found


def _is_same(one: Decision, other: Decision) -> bool:
    if (one.action, one.cause) != (other.action, other.cause):
        return False
    return bool(one.cause) or one.why == other.why
