"""Rescaling in place: workers join, leave and are replaced while the others train on.

At most one generation is pending. A broken generation is replaced at once by a `recover` generation
of the workers that hold the state.

Joiners that began together (a cohort) may wait for each other in their script's beginning: when
one of them dies, those that have not reached their first batch are started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.train.job import planning, switching
from shoal.train.job.actions import Exit, KillWorker, ReleaseWorker, RequestWorker, StartWorker
from shoal.train.job.state import Pending, State, Worker
from shoal.train.messages import (
    Abort,
    Formed,
    FormFailed,
    Lost,
    Store,
    StoreAddress,
    Switched,
    WorkerMessage,
)

# A collective can fail a moment before the peer's exit is reported.
_LOST_GRACE_S = 1.0
_FORM_S = 120.0
_MAX_FORM_FAILURES = 5
_JOIN_BACKOFF_S = 60.0


class InPlace:
    """Decides on the generations of a job."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._lost_since: float | None = None
        self._form_failures = 0
        self._reconnects = 0  # without a step in between
        self._reconnected_at = 0  # at this step
        self._join_failures = 0
        self._request_after = 0.0
        self._warned_nodes: set[str] = set()

    # --- events ---

    def placed(self, worker: Worker) -> None:
        others = [w for w in self.state.workers.values() if w.node and w is not worker]
        rank = len(others)
        self.state.do(StartWorker(worker.id, worker.node, rank, rank + 1, self.state.restarts))

    def ended(self, worker: Worker, exit: Exit, now: float) -> bool:
        """Whether this exit was expected, and the worker starts again."""
        return False

    def restored(self) -> None:
        """The controller was restarted, and the state is filled."""

    def handle(self, worker: Worker, message: WorkerMessage, now: float) -> None:
        """What a worker says about its generations."""
        state = self.state
        if isinstance(message, Lost):
            state.advance_step(message.step)
            self._lost(message, now)
        elif isinstance(message, (Store, Formed, FormFailed, Switched)):
            if isinstance(message, Switched):
                state.advance_step(message.step)
            if state.pending and message.generation == state.pending.number:
                self._handle_pending(state.pending, worker, message, now)

    def _handle_pending(
        self, pending: Pending, worker: Worker, message: WorkerMessage, now: float
    ) -> None:
        if isinstance(message, Store):
            store = StoreAddress(message.host, message.port)
            pending.announcement = replace(pending.announcement, store=store)
            self.state.send_involved(pending.announcement)
        elif isinstance(message, Formed):
            pending.formed.add(worker.id)
        elif isinstance(message, FormFailed) and not pending.committed:
            self._form_failed(f"{worker.id}: {message.error}", now)
        elif isinstance(message, Switched) and pending.committed:
            pending.switched.add(worker.id)
            if worker.trained:  # a joiner costs nothing
                pending.stall_s = max(message.stall_s, pending.stall_s)
            worker.trained = worker.prepared = True
            if switching.settle(self.state, self.state.step, now):
                self._join_failures = 0

    def _lost(self, message: Lost, now: float) -> None:
        current = self.state.current()
        if current is None or message.generation != current.generation:
            return
        step, error = message.step, message.error
        self.state.record("lost", worker=message.worker, step=step, error=error)
        if any(m not in self.state.workers for m in current.members):
            # A peer ended its script while this worker still needed it.
            self._recover(f"a collective failed in {message.worker}", now)
        elif self._lost_since is None:
            self._lost_since = now

    def _form_failed(self, why: str, now: float) -> None:
        pending = self.state.pending
        assert pending is not None
        self._form_failures += 1
        self.state.record("form_failed", generation=pending.number, why=why)
        switching.cancel(self.state, "it could not be formed")
        is_first = self.state.running is None
        if pending.announcement.recover:
            self._recover(pending.reason, now)
        if self._form_failures < _MAX_FORM_FAILURES:
            return
        if is_first or pending.announcement.recover or not pending.announcement.joiners:
            self.state.finish(1, "the workers cannot connect to each other", why)
            return
        text = f"new workers cannot be reached and are replaced: {why}"
        self.state.record("note", text, "warning")
        self._form_failures = 0
        self._delay_requests(now)
        self.discard_joiners()

    # --- losses ---

    def repair(self, lost: Sequence[Worker], reason: str, now: float) -> None:
        """These workers are gone, and no longer in `workers`: repair what they were part of."""
        state, names = self.state, {w.id for w in lost}
        pending = state.pending
        if pending and not pending.committed and names & set(pending.members):
            switching.cancel(self.state, reason)
        self._restart_cohorts(lost)
        if state.running is None and not state.pending:
            state.ending = False  # a script that ran before the first batch starts again
        involved = {m for g in (state.current(), state.running) if g is not None for m in g.members}
        if names & involved:
            self._recover(reason, now)
        elif lost and not any(w.trained for w in lost):
            self._delay_requests(now)

    def _recover(self, reason: str, now: float) -> None:
        """Replace the broken generation by one of all workers that hold the state."""
        state = self.state
        if state.pending and not state.pending.committed:
            switching.cancel(self.state, reason)
        current = state.current()
        assert current is not None
        old = state.running.members if state.running else ()
        ranks = [*old, *(m for m in current.members if m not in old)]
        alive = [m for m in ranks if m in state.workers and not state.workers[m].leaving]
        for broken in {g.generation for g in (current, state.running) if g is not None}:
            for member in alive:
                state.send(member, Abort(broken))
        state.running, state.pending, self._lost_since = current, None, None
        alive.sort(key=lambda m: not state.workers[m].trained)  # stable: joiners come last
        joiners = [m for m in alive if not state.workers[m].trained]
        if len(joiners) == len(alive):
            self._all_lost(reason)
        else:
            switching.announce(state, alive, joiners, reason, now, recover=True)

    def _all_lost(self, reason: str) -> None:
        """No worker that holds the training state is left: the next generation is a first one."""
        state = self.state
        state.running, state.ending = None, False
        state.restarts += 1
        origin = state.last_checkpoint or "the beginning: there is no checkpoint yet"
        text = f"all workers are lost ({reason}); training starts again from {origin}"
        state.record("all_lost", text, "warning", restarts=state.restarts)

    def _restart_cohorts(self, lost: Sequence[Worker]) -> None:
        broken = {w.cohort for w in lost if w.cohort and not w.trained}
        for worker in list(self.state.workers.values()):
            if worker.cohort in broken and not worker.prepared:
                self.discard(worker, "a worker that started together with it is gone")

    def discard(self, worker: Worker, why: str) -> None:
        """Kill a worker that holds no state. Another one is requested where it is needed."""
        state = self.state
        if state.workers.pop(worker.id, None) is None:
            return
        if worker.node:
            state.do(KillWorker(worker.id, worker.node))
        state.do(ReleaseWorker(worker.id))
        state.record("discard", worker=worker.id, why=why)
        pending = state.pending
        if pending and not pending.committed and worker.id in pending.members:
            switching.cancel(self.state, why)
        self._restart_cohorts([worker])

    def discard_joiners(self) -> None:
        scripts = {w.id for w in self.state.scripts()}
        for worker in list(self.state.workers.values()):
            if worker.id not in scripts and not worker.leaving:
                self.discard(worker, "no more workers join")

    def _delay_requests(self, now: float) -> None:
        self._join_failures += 1
        self._request_after = now + min(_JOIN_BACKOFF_S, 2.0 ** (self._join_failures - 1) - 1)

    # --- decisions ---

    def check_deadlines(self, now: float) -> None:
        state, pending = self.state, self.state.pending
        if self._lost_since is not None and now - self._lost_since >= _LOST_GRACE_S:
            if state.step > self._reconnected_at:
                self._reconnects, self._reconnected_at = 0, state.step
            self._reconnects += 1
            if self._reconnects >= _MAX_FORM_FAILURES:
                what = "the workers lose their connections to each other repeatedly"
                state.finish(1, what, f"{_MAX_FORM_FAILURES} times at step {state.step}")
            else:
                self._recover("a collective failed, although all workers are alive", now)
        elif pending and (late := pending.unformed()):
            if self._waits_for_a_script(pending):
                pending.forming_since = now
            elif now - pending.forming_since > _FORM_S:
                self._form_failed(f"{', '.join(late)} did not connect in {_FORM_S:g} s", now)

    def _waits_for_a_script(self, pending: Pending) -> bool:
        """A script may take long to reach the library or its first batch, or never use it."""
        workers, announcement = self.state.workers, pending.announcement
        waited_for = announcement.joiners
        if announcement.store is None:
            waited_for = pending.members[:1]
        return not all(name in workers and workers[name].prepared for name in waited_for)

    def plan(self, now: float) -> None:
        state = self.state
        if self._lost_since is not None:
            return
        for worker in planning.surplus(state):
            self.discard(worker, f"no more than {state.wanted()} are needed")
        self._request_missing(now)
        is_urgent = planning.takes_too_long(state, now)
        if is_urgent:
            switching.cancel(self.state, "a worker must leave before the new ones are ready")
        if state.pending is None:
            plan = planning.plan_generation(state, now, only_prepared=is_urgent)
            if plan is not None:
                switching.announce(
                    state, plan.members, plan.joiners, plan.reason, now, master=self._master(plan)
                )
            elif state.members() and all(w.is_due(now) for w in state.members()):
                self._warn_all_leave()

    def _master(self, plan: planning.Plan) -> StoreAddress | None:
        """Until it is known what the script calls, it runs alone, with torchrun's variables."""
        state = self.state
        if state.settings.detects and state.running is None and len(plan.members) == 1:
            return state.workers[plan.members[0]].address
        return None

    def commit(self, now: float) -> None:
        if switching.commit_if_ready(self.state, now):
            self._form_failures = 0

    def _request_missing(self, now: float) -> None:
        state = self.state
        for _ in range(planning.missing(state) if now >= self._request_after else 0):
            worker = Worker(f"w{state.next_worker}")
            state.next_worker += 1
            state.workers[worker.id] = worker
            state.do(RequestWorker(worker.id))
            state.record("request", worker=worker.id)

    def _warn_all_leave(self) -> None:
        """Every node goes away and nothing replaces them yet: they train on after a checkpoint."""
        nodes = {w.node for w in self.state.members()}
        if not nodes <= self._warned_nodes:
            self._warned_nodes |= nodes
            self.state.record("note", "all nodes of the job are going away", "warning")
            self.state.request_checkpoint("all nodes are going away")
