"""Who trains: decides when workers are requested, started and replaced, and which generation of
them trains next. Pure: messages, exits and times come in, actions come out.

A worker is requested, placed on a node, started, connected; then it joins a generation and becomes
a member. `running` is the generation that trains. `pending` is the next one: announced, formed by
its members in the background, committed, then switched to. At most one is pending. A broken
generation is replaced at once by a `recover` generation of the workers that hold the state.

Joiners that began together (a cohort) may wait for each other in their script's beginning: when
one of them dies, those that have not reached their first batch are started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.train.job import planning, switching
from shoal.train.job.actions import (
    Action,
    Exit,
    KillWorker,
    ReleaseWorker,
    RequestWorker,
    StartWorker,
    WorkerReport,
)
from shoal.train.job.crashes import Crashes
from shoal.train.job.restore import restore
from shoal.train.job.state import Pending, Settings, State, Worker
from shoal.train.messages import (
    Abort,
    Checkpoint,
    Checkpointed,
    Formed,
    FormFailed,
    Hello,
    Left,
    Lost,
    Note,
    Prepared,
    Progress,
    Stop,
    Store,
    StoreAddress,
    Switched,
    UsesLibrary,
    WorkerMessage,
)

STOPPED = 143
# A collective can fail a moment before the peer's exit is reported.
_LOST_GRACE_S = 1.0
_FORM_S = 120.0
_MAX_FORM_FAILURES = 5
_JOIN_BACKOFF_S = 60.0


class Membership:
    """Every method takes the time, and returns the actions that follow."""

    def __init__(self, settings: Settings) -> None:
        self.state = State(settings, target=settings.max_workers)
        self.step = 0
        self.restarts = 0
        self.last_checkpoint = ""
        self._ending = False  # a script has ended: no worker joins any more
        self._stop_at: float | None = None
        self._lost_since: float | None = None
        self._form_failures = 0
        self._reconnects = 0  # without a step in between
        self._join_failures = 0
        self._request_after = 0.0
        self._last_notice: set[str] = set()
        self._crashes = Crashes()

    # --- events ---

    def start(self, now: float) -> list[Action]:
        self.state.began_at = now
        return self._advance(now)

    def restore(
        self, reports: Sequence[WorkerReport], now: float, *, next_worker: int = 1
    ) -> list[Action]:
        """Continue a job whose controller was restarted, and name no worker below `next_worker`."""
        self.state.next_worker = next_worker
        self.state.record("restored", "the job's controller was restarted")
        self.step = max((r.step for r in reports), default=0)
        if lost := restore(self.state, reports, now):
            self._repair([Worker(m, trained=True) for m in lost], f"{', '.join(lost)} lost", now)
        return self._advance(now)

    def placed(self, worker_id: str, node: str, now: float) -> list[Action]:
        """The resources of a requested worker are available on this node."""
        worker = self.state.workers.get(worker_id)
        if worker is not None and not worker.node:
            worker.node, worker.started_at = node, now
            others = [w for w in self.state.workers.values() if w.node and w is not worker]
            rank = len(others)
            self.state.do(StartWorker(worker_id, node, rank, rank + 1, self.restarts))
        return self._advance(now)

    def message(self, message: WorkerMessage, now: float) -> list[Action]:
        worker = self.state.workers.get(message.worker)
        if worker is not None and self.state.finished is None:
            self._handle(worker, message, now)
        return self._advance(now)

    def exited(self, worker_id: str, exit: Exit, now: float) -> list[Action]:
        state = self.state
        ends_job = worker_id in (w.id for w in state.scripts())
        worker = state.workers.pop(worker_id, None)
        if worker is None or state.finished is not None:
            return state.take_actions()
        state.do(ReleaseWorker(worker_id))
        state.record("worker_exit", worker=worker_id, node=worker.node, how=str(exit))
        if worker.leaving or (self._stop_at is not None and exit.code in (0, STOPPED)):
            pass
        elif exit.code == 0 and ends_job:
            self._script_ended()
        elif exit.code == 0:
            self._repair([worker], f"{worker_id} ended before it joined", now)
        elif exit.code is not None:
            state.finish(exit.code, "the script failed", f"{worker_id} {exit}", exit.lines)
        else:
            self._crashed(worker, exit, now)
        return self._advance(now)

    def node_lost(self, node: str, now: float) -> list[Action]:
        """The agent of the node does not answer any more."""
        state = self.state
        lost = [w for w in state.workers.values() if w.node == node]
        for worker in lost:
            del state.workers[worker.id]
            state.do(ReleaseWorker(worker.id))
        if lost and state.finished is None:
            text = f"node {node[:8]} is lost, with {', '.join(w.id for w in lost)}"
            state.record("node_lost", text, "warning", node=node)
            self._repair([w for w in lost if not w.leaving], f"node {node[:8]} is lost", now)
        return self._advance(now)

    def node_draining(self, node: str, deadline: float, now: float) -> list[Action]:
        """The node ends at `deadline`: write a checkpoint and request replacements now, and train
        there until the replacement has joined or the deadline is near."""
        state = self.state
        affected = [w for w in state.workers.values() if w.node == node and w.deadline is None]
        if affected and state.finished is None:
            for worker in affected:
                worker.deadline = deadline
            text = f"node {node[:8]} is going away in {max(0.0, deadline - now):.0f} s"
            state.record("notice", text, "warning", node=node, deadline=deadline)
            self._request_checkpoint("a node is going away")
            for worker in affected:
                if self.state.is_disposable(worker) and not self._runs_first(worker):
                    self._discard(worker, f"its node {node[:8]} is going away")
        return self._advance(now)

    def resize(self, target: int, now: float) -> list[Action]:
        """Train with up to this many workers from now on."""
        self.state.target = max(1, target)
        self.state.record("resize", f"{target} workers requested", target=target)
        return self._advance(now)

    def stop(self, now: float) -> list[Action]:
        """Write a checkpoint and end the job; workers that do not manage in time are killed."""
        if self.state.finished is None and self._stop_at is None:
            self._stop_at = now + self.state.settings.checkpoint_timeout_s
            self.state.record("stop", "stopping after a checkpoint")
            self._discard_joiners()
            for worker in self.state.scripts():
                if worker.trained:
                    self.state.send(worker.id, Stop())
        return self._advance(now)

    def tick(self, now: float) -> list[Action]:
        return self._advance(now)

    # --- messages of workers ---

    def _handle(self, worker: Worker, message: WorkerMessage, now: float) -> None:
        state = self.state
        if isinstance(message, Hello):
            worker.connected = True
        elif isinstance(message, UsesLibrary):
            state.uses_library = True
        elif isinstance(message, Prepared):
            worker.prepared = True
        elif isinstance(message, (Store, Formed, FormFailed, Switched)):
            if isinstance(message, Switched):
                self._advance_step(message.step)
            if state.pending and message.generation == state.pending.number:
                self._handle_pending(state.pending, worker, message, now)
        elif isinstance(message, Lost):
            self._advance_step(message.step)
            self._lost(message, now)
        elif isinstance(message, Progress):
            self._advance_step(message.step)
        elif isinstance(message, Left):
            worker.leaving = True
        elif isinstance(message, Checkpointed):
            self.last_checkpoint = message.path
            state.record(
                "checkpoint", step=message.step, path=message.path, bytes=message.bytes,
                seconds=message.seconds,
            )  # fmt: skip
        elif isinstance(message, Note):
            state.record("note", message.text, message.level, worker=worker.id)

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
            worker.trained = worker.prepared = True
            if switching.settle(self.state, self.step, now):
                self._join_failures = 0

    def _advance_step(self, step: int) -> None:
        if step > self.step:
            self.step, self._reconnects = step, 0

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
        self._discard_joiners()

    # --- losses ---

    def _script_ended(self) -> None:
        if not self._ending:
            self._ending = True
            self._discard_joiners()

    def _crashed(self, worker: Worker, exit: Exit, now: float) -> None:
        reason = f"{worker.id} {exit}"
        self.state.record("worker_lost", reason, "warning", worker=worker.id, node=worker.node)
        if worker.trained or self.state.running is None:
            current = self.state.current()
            where = current.generation if current else worker.cohort or -worker.number
            failure = self._crashes.add(exit, step=self.step, generation=where)
            if failure is not None:
                self.state.finish(failure.status, failure.what, failure.why, failure.output)
                return
        self._repair([worker], reason, now)

    def _repair(self, lost: Sequence[Worker], reason: str, now: float) -> None:
        """These workers are gone, and no longer in `workers`: repair what they were part of."""
        state, names = self.state, {w.id for w in lost}
        pending = state.pending
        if pending and not pending.committed and names & set(pending.members):
            switching.cancel(self.state, reason)
        self._restart_cohorts(lost)
        if state.running is None and not state.pending:
            self._ending = False  # a script that ran before the first batch starts again
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
        self.state.running, self._ending = None, False
        self.restarts += 1
        origin = self.last_checkpoint or "the beginning: there is no checkpoint yet"
        text = f"all workers are lost ({reason}); training starts again from {origin}"
        self.state.record("all_lost", text, "warning", restarts=self.restarts)

    def _restart_cohorts(self, lost: Sequence[Worker]) -> None:
        broken = {w.cohort for w in lost if w.cohort and not w.trained}
        for worker in list(self.state.workers.values()):
            if worker.cohort in broken and not worker.prepared:
                self._discard(worker, "a worker that started together with it is gone")

    def _discard(self, worker: Worker, why: str) -> None:
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

    def _discard_joiners(self) -> None:
        scripts = {w.id for w in self.state.scripts()}
        for worker in list(self.state.workers.values()):
            if worker.id not in scripts and not worker.leaving:
                self._discard(worker, "no more workers join")

    def _delay_requests(self, now: float) -> None:
        self._join_failures += 1
        self._request_after = now + min(_JOIN_BACKOFF_S, 2.0 ** (self._join_failures - 1) - 1)

    # --- decisions ---

    def _advance(self, now: float) -> list[Action]:
        state = self.state
        for decide in (self._check_end, self._check_deadlines, self._plan):
            if state.finished is None:
                decide(now)
        if state.finished is None and switching.commit_if_ready(state, now):
            self._form_failures = 0
        return state.take_actions()

    def _check_end(self, now: float) -> None:
        remaining = self.state.scripts()
        if self._stop_at is not None:
            late = [w for w in remaining if w.trained]
            if not late:
                self.state.finish(STOPPED, "stopped")
            elif now >= self._stop_at:
                seconds = self.state.settings.checkpoint_timeout_s
                self.state.finish(STOPPED, "stopped", f"without a checkpoint after {seconds:g} s")
        elif self._ending and not remaining:
            self.state.finish(0)

    def _check_deadlines(self, now: float) -> None:
        pending = self.state.pending
        if self._lost_since is not None and now - self._lost_since >= _LOST_GRACE_S:
            self._reconnects += 1
            if self._reconnects >= _MAX_FORM_FAILURES:
                what = "the workers lose their connections to each other repeatedly"
                self.state.finish(1, what, f"{_MAX_FORM_FAILURES} times at step {self.step}")
            else:
                self._recover("a collective failed, although all workers are alive", now)
        elif pending and now - pending.since > _FORM_S and (late := pending.unformed()):
            self._form_failed(f"{', '.join(late)} did not connect in {_FORM_S:g} s", now)

    def _plan(self, now: float) -> None:
        state = self.state
        if self._stop_at is not None or self._ending or self._lost_since is not None:
            return
        for worker in planning.surplus(state):
            self._discard(worker, f"no more than {state.wanted()} are needed")
        for _ in range(planning.missing(state) if now >= self._request_after else 0):
            worker = Worker(f"w{state.next_worker}")
            state.next_worker += 1
            state.workers[worker.id] = worker
            state.do(RequestWorker(worker.id))
            state.record("request", worker=worker.id)
        is_urgent = planning.takes_too_long(state, now)
        if is_urgent:
            switching.cancel(self.state, "a worker must leave before the new ones are ready")
        if state.pending is None:
            plan = planning.plan_generation(state, now, only_prepared=is_urgent)
            if plan is not None:
                switching.announce(state, plan.members, plan.joiners, plan.reason, now)
            elif state.members() and all(w.is_due(now) for w in state.members()):
                self._warn_all_leave()

    def _warn_all_leave(self) -> None:
        """Every node goes away and nothing replaces them yet: they train on after a checkpoint."""
        nodes = {w.node for w in self.state.members()}
        if not nodes <= self._last_notice:
            self._last_notice |= nodes
            self.state.record("note", "all nodes of the job are going away", "warning")
            self._request_checkpoint("all nodes are going away")

    def _request_checkpoint(self, reason: str) -> None:
        for worker in self.state.scripts():
            if worker.trained:
                self.state.send(worker.id, Checkpoint(reason))

    def _runs_first(self, worker: Worker) -> bool:
        """Whether it runs the script for the first generation, which has not trained yet."""
        return self.state.running is None and worker in self.state.scripts()
