"""Rebuilds the membership of a restarted controller from what the agents report."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.train.job.actions import WorkerReport
from shoal.train.job.state import Pending, State, Worker
from shoal.train.messages import Cancel, Commit


def restore(state: State, reports: Sequence[WorkerReport], now: float) -> list[str]:
    """Fill the state. Returns the members of the current generation that no agent has reported:
    they were lost meanwhile."""
    state.began_at = now
    announced = [g for r in reports for g in (r.last, r.current) if g is not None]
    by_number = {g.generation: g for g in announced}
    state.number = max(by_number, default=0)
    state.uses_library = any(r.uses_library for r in reports)
    for report in reports:
        worker = Worker(
            report.worker,
            report.node,
            now,
            report.connected,
            cohort=report.last.generation if report.last else 0,
            prepared=report.prepared or report.switched > 0,
            trained=report.switched > 0,
        )
        state.workers[worker.id] = worker
        state.next_worker = max(state.next_worker, worker.number + 1)
    switched = {r.worker: r.switched for r in reports if r.switched}
    newest = max((r.committed for r in reports), default=0)
    older = max((g for g in switched.values() if g < newest), default=0)
    members = by_number[newest].members if newest in by_number else ()
    is_complete = all(switched.get(m) == newest for m in members if m in state.workers)
    if newest and not is_complete:
        # The commit may not have reached all: it is sent again.
        state.running = by_number.get(older)
        state.pending = Pending(by_number[newest], "the controller was restarted", now, now)
        state.pending.committed = True
        state.pending.formed = set(members)
        state.pending.switched = {w for w, g in switched.items() if g == newest}
        state.send_involved(Commit(newest))
    else:
        state.running = by_number.get(newest)
    for report in reports:
        if report.last is not None and report.last.generation > newest:
            state.send(report.worker, Cancel(report.last.generation))
    current = state.current()
    return [m for m in (current.members if current else ()) if m not in state.workers]
