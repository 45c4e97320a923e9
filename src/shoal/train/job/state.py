"""The state of a job's membership, and the questions that its rules ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.train.job.actions import Action, Finish, Record, Send
from shoal.train.job.sizing import SIZE, Prices
from shoal.train.messages import Checkpoint, ControllerMessage, Generation, StoreAddress

# How long before the end of its node a worker leaves: at most so long, and no more than this part
# of a short notice. Google's is 30 s.
_LEAVE_BEFORE_DEADLINE_S = 30.0
_LEAVE_BEFORE_PART = 0.25
STOPPED = 143  # the status of a worker that has stopped after a checkpoint


@dataclass(frozen=True)
class Settings:
    max_workers: int = 1
    min_workers: int = 1
    rescale_timeout_s: float = 60.0
    checkpoint_timeout_s: float = 120.0
    restarts: bool = False  # a change of the membership ends all workers and starts them again
    detects: bool = False  # what the script calls decides on `restarts`
    objective: str = SIZE
    prices: Prices = field(default_factory=Prices)


@dataclass
class Worker:
    """`trained` once it holds the training state; `leaving` once its exit is expected. `cohort` is
    the first generation that was announced to it. `deadline` is when its node ends, and `leave_at`
    when it leaves at the latest."""

    id: str
    node: str = ""
    started_at: float = 0.0
    connected: bool = False
    cohort: int = 0
    prepared: bool = False
    trained: bool = False
    deadline: float | None = None
    leave_at: float = 0.0
    leaving: bool = False
    address: StoreAddress | None = None  # a free port there, for what the script may start

    @property
    def number(self) -> int:
        return int(self.id.lstrip("w") or 0)

    def announce_end(self, deadline: float, now: float, *, restarts: bool) -> None:
        """Its node ends then. A script that is restarted writes its own checkpoint first."""
        lead = _LEAVE_BEFORE_DEADLINE_S
        if not restarts:
            lead = min(lead, _LEAVE_BEFORE_PART * max(0.0, deadline - now))
        self.deadline, self.leave_at = deadline, deadline - lead

    def is_due(self, now: float) -> bool:
        """Whether it must leave now, because its node ends soon."""
        return self.deadline is not None and now >= self.leave_at


@dataclass
class Pending:
    """The next generation, until all its members train in it."""

    announcement: Generation
    reason: str
    since: float
    forming_since: float
    formed: set[str] = field(default_factory=set)
    switched: set[str] = field(default_factory=set)
    committed: bool = False
    stall_s: float = 0.0  # the longest of a worker that trained before

    @property
    def number(self) -> int:
        return self.announcement.generation

    @property
    def members(self) -> tuple[str, ...]:
        return self.announcement.members

    def unformed(self) -> list[str]:
        return [m for m in self.members if m not in self.formed]


@dataclass
class State:
    settings: Settings
    requested: int  # workers, if no other job waits for resources
    workers: dict[str, Worker] = field(default_factory=dict)
    running: Generation | None = None
    pending: Pending | None = None
    finished: Finish | None = None
    uses_library: bool = False
    began_at: float = 0.0
    number: int = 0  # of the newest generation
    next_worker: int = 1
    step: int = 0  # the last one that is known of
    restarts: int = 0
    last_checkpoint: str = ""
    is_size_fixed: bool = False  # by the user, or because nothing is measured
    share_limit: int | None = None  # workers at most, because other jobs wait for resources
    rescale_s: float | None = None  # how long training was stalled for the last change
    ending: bool = False  # a script has ended: no worker joins any more
    stop_at: float | None = None  # when workers that have not stopped are killed
    actions: list[Action] = field(default_factory=list)

    @property
    def target(self) -> int:
        """How many workers the job should have."""
        return self.requested if self.share_limit is None else min(self.requested, self.share_limit)

    @property
    def is_kind_known(self) -> bool:
        """Whether the script uses several workers, and how."""
        return self.uses_library or self.settings.restarts

    def first_size(self) -> int:
        """How many workers the first generation has, where they are available."""
        if self.settings.detects and not self.is_kind_known:
            return 1
        return max(1, min(self.settings.min_workers, self.target))

    def wanted(self) -> int:
        return self.target if self.is_kind_known else self.first_size()

    def members(self) -> list[Worker]:
        """The living members of the running generation in rank order."""
        names = self.running.members if self.running else ()
        return [self.workers[name] for name in names if name in self.workers]

    def current(self) -> Generation | None:
        """The generation that counts: a committed one, although not all have switched to it."""
        if self.pending and self.pending.committed:
            return self.pending.announcement
        return self.running

    def scripts(self) -> list[Worker]:
        """The workers whose script decides the job's end: those that hold the training state, or
        before the first generation runs, its members."""
        trained = [w for w in self.workers.values() if w.trained and not w.leaving]
        if trained or self.running is not None or self.pending is None:
            return trained
        return [self.workers[m] for m in self.pending.members if m in self.workers]

    def is_disposable(self, worker: Worker) -> bool:
        """Whether it can be killed without harm: it neither trains nor is about to."""
        pending = self.pending
        is_bound = pending is not None and (pending.committed or pending.announcement.recover)
        return not worker.trained and not (is_bound and pending and worker.id in pending.members)

    def involved(self) -> list[str]:
        """The members of the pending generation, and the workers that leave with it."""
        assert self.pending is not None
        old = self.running.members if self.running else ()
        return [*self.pending.members, *(m for m in old if m not in self.pending.members)]

    def send(self, worker: str, message: ControllerMessage) -> None:
        if worker in self.workers:
            self.do(Send(worker, self.workers[worker].node, message))

    def send_involved(self, message: ControllerMessage) -> None:
        for worker in self.involved():
            self.send(worker, message)

    def request_checkpoint(self, reason: str) -> None:
        for worker in self.scripts():
            if worker.trained:
                self.send(worker.id, Checkpoint(reason))

    def advance_step(self, step: int) -> None:
        self.step = max(self.step, step)

    def record(self, kind: str, text: str = "", level: str = "info", **values: object) -> None:
        self.do(Record(kind, text, level, values))

    def finish(
        self, status: int, what: str = "", why: str = "", output: tuple[str, ...] = ()
    ) -> None:
        self.finished = Finish(status, what, why, output)
        self.do(self.finished)

    def do(self, action: Action) -> None:
        self.actions.append(action)

    def take_actions(self) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions
