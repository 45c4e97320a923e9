"""Tells the user, once, what a job waits for that does not train."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.train.job.state import State

_RESOURCES_S = 10.0
_JOINER_S = 120.0
_HANG_S = 300.0


class WaitingNotes:
    def __init__(self, resources: Mapping[str, float], now: float) -> None:
        self._resources = ", ".join(f"{count:g} {name}" for name, count in resources.items())
        self._said: set[str] = set()
        self._stepped_at = now

    def stepped(self, now: float) -> None:
        """The job has made progress: a later stop is worth another note."""
        self._stepped_at = now
        self._said.discard("step")

    def check(self, state: State, now: float) -> list[str]:
        notes = []
        unplaced = [w.id for w in state.workers.values() if not w.node]
        if state.running is None and state.pending is None and unplaced:
            if now - state.began_at > _RESOURCES_S and self._is_new("resources"):
                notes.append(f"waiting for a node with {self._resources} for each worker")
        elif state.pending is not None and not state.pending.committed:
            names = state.pending.announcement.joiners
            slow = [j for j in names if j in state.workers and not state.workers[j].prepared]
            if slow and now - state.pending.since > _JOINER_S and self._is_new(slow[0]):
                text = f"{', '.join(slow)} did not reach the first batch in {_JOINER_S:.0f} s yet"
                notes.append(text)
        if state.running is not None and now - self._stepped_at > _HANG_S and self._is_new("step"):
            notes.append(f"no step was reported for {_HANG_S:.0f} s; the script may hang")
        return notes

    def _is_new(self, subject: str) -> bool:
        is_new = subject not in self._said
        self._said.add(subject)
        return is_new
