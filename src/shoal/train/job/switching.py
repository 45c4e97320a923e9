"""From one generation to the next: announced, formed, committed, switched to, or cancelled."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.train.job.state import Pending, State
from shoal.train.messages import Cancel, Commit, Generation, StoreAddress


def announce(
    state: State,
    members: Sequence[str],
    joiners: Sequence[str],
    reason: str,
    now: float,
    *,
    recover: bool = False,
    master: StoreAddress | None = None,
) -> None:
    """Begin the next generation: rank 0 creates its store, and then the others hear of it."""
    state.number += 1
    nodes = tuple(state.workers[m].node for m in members)
    announcement = Generation(
        state.number, tuple(members), nodes, tuple(joiners), None, recover, master
    )
    for joiner in joiners:
        state.workers[joiner].cohort = state.workers[joiner].cohort or state.number
    state.pending = Pending(announcement, reason, now, now)
    state.record(
        "announce", generation=state.number, members=list(members), joiners=list(joiners),
        recover=recover, reason=reason,
    )  # fmt: skip
    for member in members if master is not None else members[:1]:
        state.send(member, announcement)


def cancel(state: State, reason: str) -> None:
    """Give up the pending generation, which is not committed."""
    assert state.pending is not None
    state.record("cancel", generation=state.pending.number, why=reason)
    state.send_involved(Cancel(state.pending.number))
    state.pending = None


def commit_if_ready(state: State, now: float) -> bool:
    """Commit the pending generation if all members have formed it and all joiners wait for it."""
    pending = state.pending
    if pending is None or pending.committed or pending.unformed():
        return False
    joiners = pending.announcement.joiners
    if not all(j in state.workers and state.workers[j].prepared for j in joiners):
        return False
    pending.committed = True
    state.record("commit", generation=pending.number, seconds=round(now - pending.since, 3))
    state.send_involved(Commit(pending.number))
    return True


def settle(state: State, step: int, now: float) -> bool:
    """Make the committed generation the running one if every member trains in it."""
    pending = state.pending
    assert pending is not None
    members = pending.members
    if not pending.switched >= {m for m in members if m in state.workers}:
        return False
    for worker in state.members():
        worker.leaving = worker.leaving or worker.id not in members
    if state.running is not None:
        state.rescale_s = pending.stall_s
    state.running, state.pending = pending.announcement, None
    text = f"{len(members)} worker{'s' if len(members) != 1 else ''}: {pending.reason}"
    state.record(
        "generation", text, generation=pending.number, members=list(members), step=step,
        reason=pending.reason, seconds=round(now - pending.since, 3),
    )  # fmt: skip
    return True
