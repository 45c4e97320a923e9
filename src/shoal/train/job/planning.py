"""Which generation should train next, as a pure function of the state and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.train.job.state import State, Worker

# Workers that are being started are waited for so that they join in one generation.
_GATHER_S = 5.0


@dataclass(frozen=True)
class Plan:
    members: tuple[str, ...]
    joiners: tuple[str, ...]
    reason: str


def plan_generation(state: State, now: float, *, only_prepared: bool = False) -> Plan | None:
    """The generation to announce, if the membership should change. `only_prepared` leaves out
    joiners that have not reached their first batch, because a worker must leave now."""
    if state.running is None:
        return _plan_first(state, now)
    current = state.members()
    keep = [w for w in current if w.deadline is None][: state.target]
    joiners = _joiners(state, now, only_prepared=only_prepared)
    joiners = joiners[: max(0, state.target - len(keep))]
    # Nodes that are going away train on until they are replaced or due.
    doomed = [w for w in current if w.deadline is not None and not w.is_due(now)]
    doomed.sort(key=lambda w: w.deadline or 0.0, reverse=True)
    keep += doomed[: max(0, state.target - len(keep) - len(joiners))]
    if not keep and joiners:
        # A joiner gets the state from a survivor, which leaves with the generation after.
        keep = [max(current, key=lambda w: w.deadline or 0.0)]
    kept = {w.id for w in keep}
    staying = [w.id for w in current if w.id in kept]
    joining = [w.id for w in joiners]
    leaving = [w.id for w in current if w.id not in kept]
    if not staying or not (joining or leaving):
        return None  # where all must leave and nothing replaces them, they train on
    return Plan((*staying, *joining), tuple(joining), describe(joining, leaving))


def takes_too_long(state: State, now: float) -> bool:
    """Whether the pending generation keeps a worker that must leave now from leaving."""
    pending = state.pending
    if pending is None or pending.committed or pending.announcement.recover:
        return False
    due = [w.id for w in state.members() if w.is_due(now)]
    if not due or len(due) == len(state.members()):
        return False
    joiners = (state.workers[j] for j in pending.announcement.joiners if j in state.workers)
    return any(not j.prepared for j in joiners) or any(m in pending.members for m in due)


def surplus(state: State) -> list[Worker]:
    """Workers that are not needed and can be ended at once, because none of them trains: those
    beyond the target, and those whose node is going away."""
    staying = [w for w in state.workers.values() if not w.leaving and w.deadline is None]
    candidates = [w for w in staying if state.is_disposable(w) and not _has_companions(state, w)]
    candidates.sort(key=_readiness)
    pending = state.pending.members if state.pending else ()
    doomed = [w for w in state.workers.values() if w.deadline is not None and w.id not in pending]
    extra = candidates[: max(0, len(staying) - state.wanted())]
    return [*extra, *filter(state.is_disposable, doomed)]


def missing(state: State) -> int:
    """How many workers to request. Those whose node is going away are replaced."""
    staying = [w for w in state.workers.values() if not w.leaving and w.deadline is None]
    return max(0, state.wanted() - len(staying))


def _plan_first(state: State, now: float) -> Plan | None:
    joiners = _joiners(state, now, only_prepared=False)
    enough = len(joiners) >= state.first_size()
    if not joiners or not (enough or now >= state.began_at + state.settings.rescale_timeout_s):
        return None
    names = tuple(w.id for w in joiners[: state.target])
    return Plan(names, names, describe(names, ()))


def _joiners(state: State, now: float, *, only_prepared: bool) -> list[Worker]:
    members = set(state.running.members) if state.running else set()
    others = [
        w for w in state.workers.values()
        if w.id not in members and w.node and not w.leaving and w.deadline is None
    ]  # fmt: skip
    if only_prepared:
        return [w for w in others if w.prepared]
    connected = [w for w in others if w.connected]
    starting = any(not w.connected and now - w.started_at < _GATHER_S for w in others)
    if starting and (state.running is not None or len(connected) < state.first_size()):
        return []
    return connected


def _has_companions(state: State, worker: Worker) -> bool:
    """Whether others that began with it would have to start again without it. They join together
    first, and the job shrinks then."""
    return bool(worker.cohort) and any(
        w.cohort == worker.cohort and w is not worker and not w.prepared
        for w in state.workers.values()
    )


def _readiness(worker: Worker) -> tuple[bool, bool, bool, int]:
    return (bool(worker.node), worker.connected, worker.prepared, -worker.number)


def describe(joining: Sequence[str], leaving: Sequence[str]) -> str:
    """Why a generation begins."""
    parts = []
    if joining:
        parts.append(f"{', '.join(joining)} joined")
    if leaving:
        parts.append(f"{', '.join(leaving)} left")
    return "; ".join(parts)
