"""Who trains: decides when workers are requested, started and replaced, and which generation of
them trains next. Pure: messages, exits and times come in, actions come out.

A worker is requested, placed on a node, started, connected; then it joins a generation and becomes
a member. `running` is the generation that trains. `pending` is the next one: announced, formed by
its members in the background, committed, then switched to. How a job gets from one to the next is
in `in_place.py` and `restarting.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.train.job.actions import Action, Exit, ReleaseWorker, WorkerReport
from shoal.train.job.automatic_size import AutomaticSize, starts_with
from shoal.train.job.crashes import Crashes
from shoal.train.job.fair_share import FairShare, JobUse
from shoal.train.job.in_place import InPlace
from shoal.train.job.restarting import Restarting
from shoal.train.job.restore import restore
from shoal.train.job.sizing import SIZE
from shoal.train.job.state import STOPPED, Settings, State, Worker
from shoal.train.messages import (
    Checkpointed,
    GoodputReport,
    Hello,
    Left,
    Metrics,
    Note,
    Notice,
    Prepared,
    Progress,
    Stop,
    StoreAddress,
    UsesLibrary,
    UsesProcessGroup,
    WorkerMessage,
)

# A script that has called neither the library nor torch.distributed by then gets a note.
_UNKNOWN_KIND_S = 120.0


class Membership:
    """Every method takes the time, and returns the actions that follow."""

    def __init__(self, settings: Settings) -> None:
        requested = starts_with(settings.max_workers, settings.min_workers, settings.objective)
        self.state = State(settings, settings.max_workers if settings.restarts else requested)
        self.state.is_size_fixed = settings.restarts or settings.objective == SIZE
        self._rescaling = (Restarting if settings.restarts else InPlace)(self.state)
        self._automatic_size = AutomaticSize(self.state)
        self._fair_share = FairShare()
        self._crashes = Crashes()
        self._noted_one_worker = False

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
        self.state.step = max((r.step for r in reports), default=0)
        lost = restore(self.state, reports, now)
        self._rescaling.restored()
        if lost:
            workers = [Worker(m, trained=True) for m in lost]
            self._rescaling.repair(workers, f"{', '.join(lost)} lost", now)
        return self._advance(now)

    def restore_size(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Before `restore`: what the journal says about the number of workers."""
        if entries:
            self.state.requested = int(entries[-1]["target"])
            self.state.is_size_fixed |= any(entry["kind"] == "resize" for entry in entries)

    def restore_kind(self) -> None:
        """Before `restore`: the script is known to make its own process group."""
        self._restart_from_now_on()

    def placed(self, worker_id: str, node: str, now: float) -> list[Action]:
        """The resources of a requested worker are available on this node."""
        worker = self.state.workers.get(worker_id)
        if worker is not None and not worker.node:
            worker.node, worker.started_at = node, now
            self._rescaling.placed(worker)
        return self._advance(now)

    def message(self, message: WorkerMessage, now: float) -> list[Action]:
        worker = self.state.workers.get(message.worker)
        if worker is not None and self.state.finished is None:
            self._handle(worker, message, now)
        return self._advance(now)

    def exited(self, worker_id: str, exit: Exit, now: float) -> list[Action]:
        state = self.state
        ends_job = worker_id in (w.id for w in state.scripts())
        worker = state.workers.get(worker_id)
        if worker is None or state.finished is not None:
            return state.take_actions()
        if state.stop_at is None and self._rescaling.ended(worker, exit, now):
            return self._advance(now)
        del state.workers[worker_id]
        state.do(ReleaseWorker(worker_id))
        state.record("worker_exit", worker=worker_id, node=worker.node, how=str(exit))
        if worker.leaving or (state.stop_at is not None and exit.code in (0, STOPPED)):
            pass
        elif exit.code == 0 and ends_job:
            self._script_ended()
        elif exit.code == 0:
            self._rescaling.repair([worker], f"{worker_id} ended before it joined", now)
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
            self._rescaling.repair(
                [w for w in lost if not w.leaving], f"node {node[:8]} is lost", now
            )
        return self._advance(now)

    def node_draining(self, node: str, deadline: float, now: float) -> list[Action]:
        """The node ends at `deadline`: write a checkpoint and request replacements now, and train
        there until the replacement has joined or the deadline is near."""
        state = self.state
        affected = [w for w in state.workers.values() if w.node == node and w.deadline is None]
        if affected and state.finished is None:
            for worker in affected:
                worker.announce_end(deadline, now, restarts=state.settings.restarts)
                state.send(worker.id, Notice(max(0.0, deadline - now)))
            text = f"node {node[:8]} is going away in {max(0.0, deadline - now):.0f} s"
            state.record("notice", text, "warning", node=node, deadline=deadline)
            state.request_checkpoint("a node is going away")
            for worker in affected:
                if self.state.is_disposable(worker) and not self._runs_first(worker):
                    self._rescaling.discard(worker, f"its node {node[:8]} is going away")
        return self._advance(now)

    def resize(self, target: int, now: float) -> list[Action]:
        """Train with up to this many workers from now on."""
        self.state.requested = max(1, target)
        self.state.is_size_fixed = True
        self.state.record("resize", f"{target} workers requested", target=target)
        return self._advance(now)

    def other_jobs(self, own: JobUse, others: Mapping[str, JobUse], now: float) -> list[Action]:
        """What the training jobs on this cluster have, and what they wait for."""
        state = self.state
        before = state.target
        if self._fair_share.update(own, others, state.settings.min_workers, now):
            state.share_limit = self._fair_share.limit
            if state.target != before:
                why = "another training job waits for resources"
                if state.share_limit is None:
                    why = "no other training job waits for resources"
                state.record("share", f"{state.target} workers at most: {why}", limit=state.target)
        return self._advance(now)

    def stop(self, now: float) -> list[Action]:
        """Write a checkpoint and end the job; workers that do not manage in time are killed."""
        if self.state.finished is None and self.state.stop_at is None:
            self.state.stop_at = now + self.state.settings.checkpoint_timeout_s
            self.state.record("stop", "stopping after a checkpoint")
            self._rescaling.discard_joiners()
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
            worker.address = StoreAddress(message.host, message.port)
        elif isinstance(message, UsesLibrary):
            state.uses_library = True
        elif isinstance(message, UsesProcessGroup):
            self._restart_from_now_on()
        elif isinstance(message, GoodputReport):
            self._automatic_size.report(message, now)
        elif isinstance(message, Prepared):
            worker.prepared = True
        elif isinstance(message, Progress):
            state.advance_step(message.step)
        elif isinstance(message, Metrics):
            state.record("metrics", values=message.values)
        elif isinstance(message, Left):
            worker.leaving = True
        elif isinstance(message, Checkpointed):
            state.last_checkpoint = message.path
            state.record(
                "checkpoint", step=message.step, path=message.path, bytes=message.bytes,
                seconds=message.seconds, host=worker.address.host if worker.address else "",
            )  # fmt: skip
        elif isinstance(message, Note):
            state.record("note", message.text, message.level, worker=worker.id)
        else:
            self._rescaling.handle(worker, message, now)

    def _restart_from_now_on(self) -> None:
        """The script makes its own process group: its workers change by restart."""
        state = self.state
        if state.is_kind_known or not state.settings.detects:
            return
        state.settings = replace(state.settings, restarts=True)
        state.requested, state.is_size_fixed = state.settings.max_workers, True
        state.record(
            "kind",
            "the script makes its own process group, as under torchrun: "
            "its workers are started again when their number changes",
        )
        self._rescaling = Restarting(state)
        self._rescaling.restored()

    def _note_one_worker(self) -> None:
        state = self.state
        if self._noted_one_worker or state.is_kind_known or state.settings.max_workers == 1:
            return
        self._noted_one_worker = True
        state.record(
            "note",
            "the script uses neither shoal.train (or adaptdl) nor torch.distributed: "
            "it runs on one worker",
        )

    # --- ends ---

    def _script_ended(self) -> None:
        if not self.state.ending:
            self.state.ending = True
            self._note_one_worker()
            self._rescaling.discard_joiners()

    def _crashed(self, worker: Worker, exit: Exit, now: float) -> None:
        reason = f"{worker.id} {exit}"
        self.state.record("worker_lost", reason, "warning", worker=worker.id, node=worker.node)
        if worker.trained or self.state.running is None:
            current = self.state.current()
            where = current.generation if current else worker.cohort or -worker.number
            failure = self._crashes.add(exit, step=self.state.step, generation=where)
            if failure is not None:
                self.state.finish(failure.status, failure.what, failure.why, failure.output)
                return
        self._rescaling.repair([worker], reason, now)

    def _advance(self, now: float) -> list[Action]:
        state = self.state
        for decide in (self._check_end, self._rescaling.check_deadlines, self._plan):
            if state.finished is None:
                decide(now)
        if state.finished is None:
            self._rescaling.commit(now)
        return state.take_actions()

    def _plan(self, now: float) -> None:
        if any(w.connected and now - w.started_at > _UNKNOWN_KIND_S for w in self._scripts()):
            self._note_one_worker()
        if self.state.stop_at is None and not self.state.ending:
            self._rescaling.plan(now)

    def _check_end(self, now: float) -> None:
        remaining = self.state.scripts()
        if self.state.stop_at is not None:
            late = [w for w in remaining if w.trained]
            if not late:
                self.state.finish(STOPPED, "stopped")
            elif now >= self.state.stop_at:
                seconds = self.state.settings.checkpoint_timeout_s
                self.state.finish(STOPPED, "stopped", f"without a checkpoint after {seconds:g} s")
        elif self.state.ending and not remaining:
            self.state.finish(0)

    def _scripts(self) -> list[Worker]:
        return [] if self._noted_one_worker else self.state.scripts()

    def _runs_first(self, worker: Worker) -> bool:
        """Whether it runs the script for the first generation, which has not trained yet."""
        return self.state.running is None and worker in self.state.scripts()
