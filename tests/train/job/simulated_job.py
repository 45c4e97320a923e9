"""A job without processes: workers that answer the messages of `Membership` as real ones do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shoal.train.job.actions import (
    Action,
    Exit,
    Finish,
    KillWorker,
    Record,
    ReleaseWorker,
    RequestWorker,
    Send,
    SignalWorker,
    StartWorker,
    WorkerReport,
)
from shoal.train.job.membership import Membership
from shoal.train.job.state import Settings
from shoal.train.messages import (
    Abort,
    Cancel,
    Checkpoint,
    Commit,
    ControllerMessage,
    Formed,
    Generation,
    Hello,
    Left,
    Prepared,
    Stop,
    Store,
    Switched,
    UsesLibrary,
    WorkerMessage,
)

SIGKILL = 9


@dataclass
class SimulatedWorker:
    """`prepares` and `forms` if it answers at once; a test can let it do so later."""

    id: str
    node: str
    prepares: bool = True
    forms: bool = True
    switches: bool = True
    started: bool = False
    ignores_sigterm: bool = False
    announced: dict[int, Generation] = field(default_factory=dict)
    generation: int = 0
    received: list[ControllerMessage] = field(default_factory=list)


class SimulatedJob:
    """Every placement is granted at once on the next of `nodes`, or waits in `requested`."""

    def __init__(
        self,
        max_workers: int = 1,
        min_workers: int = 1,
        nodes: int | None = None,
        uses_library: bool = True,
        restarts: bool = False,
    ) -> None:
        self.settings = Settings(max_workers, min_workers, restarts=restarts)
        self.membership = Membership(self.settings)
        self.now = 100.0
        self.step = 10
        self.uses_library = uses_library
        self.prepares = True  # what new workers do
        self.forms = True
        self.nodes: deque[str] = deque(
            f"n{i}" for i in range(max_workers if nodes is None else nodes)
        )
        self.requested: list[str] = []
        self.ever_requested: list[str] = []
        self.workers: dict[str, SimulatedWorker] = {}
        self.killed: list[str] = []
        self.signals: list[tuple[str, int]] = []
        self.records: list[Record] = []
        self.finish: Finish | None = None
        self._actions: deque[Action] = deque()
        self._is_performing = False

    # --- what a test does ---

    def start(self) -> SimulatedJob:
        self._perform(self.membership.start(self.now))
        return self

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self._perform(self.membership.tick(self.now))

    def add_node(self, name: str) -> None:
        self.nodes.append(name)
        self._perform([])

    def kill(self, *workers: str, signal: int = SIGKILL, frozen: bool = False) -> None:
        exits = [(w, self.workers.pop(w)) for w in workers]
        for worker, _ in exits:
            exit = Exit(signal=signal, frozen=frozen)
            self._perform(self.membership.exited(worker, exit, self.now))

    def exit(self, worker: str, code: int, *lines: str) -> None:
        del self.workers[worker]
        self._perform(self.membership.exited(worker, Exit(code, lines=lines), self.now))

    def lose_node(self, node: str) -> None:
        for worker in [w for w in self.workers.values() if w.node == node]:
            del self.workers[worker.id]
        self._perform(self.membership.node_lost(node, self.now))

    def drain(self, node: str, deadline_in: float = 120.0) -> None:
        self._perform(self.membership.node_draining(node, self.now + deadline_in, self.now))

    def resize(self, target: int) -> None:
        self._perform(self.membership.resize(target, self.now))

    def stop(self) -> None:
        self._perform(self.membership.stop(self.now))

    def say(self, message: WorkerMessage) -> None:
        self._perform(self.membership.message(message, self.now))

    def prepare(self, worker: str) -> None:
        self.say(Prepared(worker))

    def let_switch(self, worker: str) -> None:
        """Let a worker that held back reach the boundary."""
        simulated = self.workers[worker]
        simulated.switches = True
        self._switch(simulated, max(m.generation for m in self.commits(worker)))

    def restart_controller(self, lost: tuple[str, ...] = ()) -> None:
        for worker in lost:
            del self.workers[worker]
        reports = [
            WorkerReport(
                w.id, w.node, connected=True, uses_library=self.uses_library,
                prepared=w.prepares, switched=w.generation, step=self.step,
                last=w.announced[max(w.announced)] if w.announced else None,
                current=w.announced.get(w.generation),
                committed=max((m.generation for m in self.commits(w.id)), default=0),
            )
            for w in self.workers.values()
        ]  # fmt: skip
        self.requested.clear()  # placements without a worker are removed
        self.membership = Membership(self.settings)
        next_worker = 1 + max(int(w[1:]) for w in self.ever_requested)
        self._perform(self.membership.restore(reports, self.now, next_worker=next_worker))

    # --- what a test asks ---

    @property
    def members(self) -> list[str]:
        running = self.membership.state.running
        return list(running.members) if running else []

    @property
    def generation(self) -> int:
        running = self.membership.state.running
        return running.generation if running else 0

    def status(self) -> int | None:
        return self.finish.status if self.finish else None

    def outcome(self) -> Finish:
        assert self.finish is not None
        return self.finish

    def got(self, worker: str, kind: type[ControllerMessage]) -> list[ControllerMessage]:
        return [m for m in self.workers[worker].received if isinstance(m, kind)]

    def commits(self, worker: str) -> list[Commit]:
        return [m for m in self.workers[worker].received if isinstance(m, Commit)]

    def aborted(self, worker: str) -> bool:
        return bool(self.got(worker, Abort))

    def checkpoints(self, worker: str) -> int:
        return len(self.got(worker, Checkpoint))

    def kinds(self) -> list[str]:
        return [r.kind for r in self.records]

    # --- the world ---

    def _perform(self, actions: list[Action]) -> None:
        """Perform actions in order; what follows from one comes after all that are known."""
        self._actions.extend(actions)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._actions or self._place():
                if self._actions:
                    self._perform_one(self._actions.popleft())
        finally:
            self._is_performing = False

    def _perform_one(self, action: Action) -> None:
        if isinstance(action, RequestWorker):
            self.requested.append(action.worker)
            self.ever_requested.append(action.worker)
        elif isinstance(action, StartWorker):
            worker = SimulatedWorker(action.worker, action.node, self.prepares, self.forms)
            self.workers[worker.id] = worker
            self.say(Hello(worker.id, pid=1, host=worker.node, port=1))
        elif isinstance(action, KillWorker):
            self.killed.append(action.worker)
            self.workers.pop(action.worker, None)
        elif isinstance(action, SignalWorker):
            self.signals.append((action.worker, action.signal))
            hit = self.workers.get(action.worker)
            if hit is not None and not (hit.ignores_sigterm and action.signal != SIGKILL):
                self.kill(hit.id, signal=action.signal)
        elif isinstance(action, ReleaseWorker):
            if action.worker in self.requested:
                self.requested.remove(action.worker)
        elif isinstance(action, Send):
            if action.worker in self.workers:
                self._receive(self.workers[action.worker], action.message)
        elif isinstance(action, Record):
            self.records.append(action)
        elif isinstance(action, Finish):
            assert self.finish is None, "a job ends once"
            self.finish = action

    def _place(self) -> bool:
        if not (self.requested and self.nodes):
            return False
        worker, node = self.requested.pop(0), self.nodes.popleft()
        self._perform(self.membership.placed(worker, node, self.now))
        return True

    def _receive(self, worker: SimulatedWorker, message: ControllerMessage) -> None:
        worker.received.append(message)
        if isinstance(message, Generation):
            self._form(worker, message)
        elif isinstance(message, Commit) and worker.switches:
            self._switch(worker, message.generation)
        elif isinstance(message, Cancel):
            worker.announced.pop(message.generation, None)
        elif isinstance(message, Stop):
            self.exit(worker.id, 143)

    def _form(self, worker: SimulatedWorker, message: Generation) -> None:
        worker.announced[message.generation] = message
        if message.store is None:
            assert message.master or message.rank(worker.id) == 0, "rank 0 creates the store"
            if worker.forms and message.rank(worker.id) == 0:
                self.say(Store(worker.id, message.generation, worker.node, 1))
            return
        if worker.id not in message.members:
            return
        if worker.forms:
            self.say(Formed(worker.id, message.generation))
        if worker.id in self.workers and not worker.started:
            worker.started = True
            if self.uses_library:
                self.say(UsesLibrary(worker.id))
                if worker.prepares:
                    self.prepare(worker.id)

    def _switch(self, worker: SimulatedWorker, generation: int) -> None:
        if worker.id in worker.announced[generation].members:
            worker.generation = generation
            self.say(Switched(worker.id, generation, self.step))
        else:
            self.say(Left(worker.id))
            self.exit(worker.id, 0)
