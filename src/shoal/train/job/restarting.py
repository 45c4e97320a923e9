"""Rescaling by restart, for scripts that cannot change the number of workers in place: all workers
end after a checkpoint, and start again as a group of another size.

A worker keeps its resources while it is started again. New workers are placed first and start with
the next group, so the old one trains meanwhile. A script without the library is ended by SIGTERM,
and finds its place in torchrun's variables.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from shoal.train.job import planning, switching
from shoal.train.job.actions import Exit, SignalWorker, StartWorker
from shoal.train.job.in_place import InPlace
from shoal.train.job.state import STOPPED, State, Worker
from shoal.train.messages import Stop

# Workers that are placed one after another start as one group.
_GATHER_S = 5.0
_KILL_AGAIN_S = 1.0


class Restarting(InPlace):
    """At most one generation per group: it is always a first one."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._group: list[str] = []  # the workers that have a process, in the order of ranks
        self._kill_at: float | None = None  # set while the group ends

    # --- events ---

    def placed(self, worker: Worker) -> None:
        """It starts with the next group."""

    def ended(self, worker: Worker, exit: Exit, now: float) -> bool:
        if worker.id not in self._group:
            return False
        is_stopped = exit.code == STOPPED and worker.trained
        if self._kill_at is None and is_stopped:  # by a signal from outside
            self._end_group(f"{worker.id} has stopped", now)
        if self._kill_at is None or exit.code == 0:
            return False
        self.state.record("worker_exit", worker=worker.id, node=worker.node, how=str(exit))
        self._group.remove(worker.id)
        worker.connected = worker.prepared = worker.trained = False
        worker.cohort = 0
        return True

    def restored(self) -> None:
        state = self.state
        current = state.current()
        ranks = {member: rank for rank, member in enumerate(current.members if current else ())}
        self._group = sorted(state.workers, key=lambda name: ranks.get(name, len(ranks)))

    # --- losses ---

    def repair(self, lost: Sequence[Worker], reason: str, now: float) -> None:
        gone = [w.id for w in lost if w.id in self._group]
        self._group = [m for m in self._group if m not in gone]
        if gone:
            self._end_group(reason, now, kill=True)
        if lost and not any(w.trained for w in lost):
            self._delay_requests(now)

    def _recover(self, reason: str, now: float) -> None:
        self._end_group(reason, now, kill=True)

    # --- decisions ---

    def plan(self, now: float) -> None:
        self._request_missing(now)
        if self._kill_at is not None:
            self._go_on_ending(now)
        chosen = self._choose(now)
        if self._kill_at is not None or not chosen:
            return
        if not self._group:
            self._start_group(chosen, now)
        elif set(chosen) != set(self._group):
            self._end_group(self._change(chosen), now)
        elif self.state.current() is None and self.state.pending is None:
            self._announce(now)
        self._discard_spare()

    def _choose(self, now: float) -> list[str]:
        """The workers that should train now; none: those that do."""
        state, group = self.state, self._group
        workers = [w for w in state.workers.values() if w.node and not w.leaving]
        new = [w for w in workers if w.id not in group and w.deadline is None]
        old = [state.workers[m] for m in group if m in state.workers]
        staying = [w for w in old if w.deadline is None]
        doomed = [w for w in old if w.deadline is not None and not w.is_due(now)]
        if not self._is_worth_a_start(new, now):
            new = []
        new.sort(key=lambda w: w.number)
        doomed.sort(key=lambda w: w.deadline or 0.0, reverse=True)
        return [w.id for w in (*staying, *new, *doomed)][: state.target]

    def _is_worth_a_start(self, new: list[Worker], now: float) -> bool:
        """Whether to start with these workers, rather than to wait for those that are requested."""
        if not new:
            return False
        state = self.state
        waited = now - min(w.started_at for w in new)
        if all(w.node for w in state.workers.values()) and len(state.workers) >= state.wanted():
            return True
        if not self._group and len(new) >= state.first_size():
            return waited >= _GATHER_S
        return waited >= state.settings.rescale_timeout_s

    def _change(self, chosen: Sequence[str]) -> str:
        joining = [m for m in chosen if m not in self._group]
        return planning.describe(joining, [m for m in self._group if m not in chosen])

    def _start_group(self, members: list[str], now: float) -> None:
        state = self.state
        self._group = list(members)
        for rank, member in enumerate(members):
            worker = state.workers[member]
            worker.started_at = now
            start = StartWorker(member, worker.node, rank, len(members), state.restarts)
            state.do(start)

    def _announce(self, now: float) -> None:
        workers = [self.state.workers[m] for m in self._group]
        if all(w.connected for w in workers):
            reason = f"{', '.join(self._group)} started"
            master = workers[0].address
            switching.announce(self.state, self._group, self._group, reason, now, master=master)

    def _end_group(self, reason: str, now: float, *, kill: bool = False) -> None:
        """End all workers, after a checkpoint unless the group is broken."""
        state = self.state
        self._lost_since = None
        if self._kill_at is not None and not kill:
            return
        if self._kill_at is None:
            state.restarts += 1
            origin = "" if not kill else f" from {state.last_checkpoint or 'the beginning'}"
            text = f"all workers are started again{origin}: {reason}"
            state.record("restart", text, "warning" if kill else "info", restarts=state.restarts)
        self._kill_at = now if kill else now + state.settings.checkpoint_timeout_s
        for member in self._group:
            worker = state.workers[member]
            if worker.trained and not kill:
                state.send(member, Stop())
            elif state.uses_library or kill:
                self._signal(worker, signal.SIGKILL)  # it has nothing to save
            else:
                self._signal(worker, signal.SIGTERM)
        self._go_on_ending(now)

    def _go_on_ending(self, now: float) -> None:
        state = self.state
        assert self._kill_at is not None
        if not self._group:
            self._kill_at = None
            state.running = state.pending = None
            state.ending = False
        elif now > self._kill_at:
            self._kill_at = now + _KILL_AGAIN_S
            for member in self._group:
                self._signal(state.workers[member], signal.SIGKILL)

    def _signal(self, worker: Worker, number: int) -> None:
        self.state.do(SignalWorker(worker.id, worker.node, number))

    def _discard_spare(self) -> None:
        """Workers without a process that no group needs."""
        state = self.state
        spare = [w for w in state.workers.values() if w.id not in self._group]
        doomed = [w for w in spare if w.deadline is not None]
        others = [w for w in spare if w.deadline is None]
        others.sort(key=lambda w: (bool(w.node), -w.number))
        staying = [m for m in self._group if state.workers[m].deadline is None]
        extra = len(staying) + len(others) - state.target
        for worker in (*doomed, *others[: max(0, extra)]):
            self.discard(worker, f"no more than {state.target} are needed")
