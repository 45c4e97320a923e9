"""The messages between the workers of a training job and its controller, as JSON lines.

A worker speaks to the agent on its node over a unix socket, the agent forwards to the controller
and back, in order. This module imports nothing but the standard library: workers import it
before the user's script starts.

The life of a worker: it connects and sends `Hello`, waits for its first `Generation`, then starts
the script. With the library's first use (its import counts) it sends `UsesLibrary`; only then are
workers beyond the minimum started. At its first batch a joiner sends `Prepared` and waits until
the generation is committed.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

_M = TypeVar("_M", bound="Message")


class MalformedMessage(ValueError):
    """A line that is not a message of this module."""


@dataclass(frozen=True)
class Message:
    """Base of all messages: `to_json` gives one line without its newline."""

    TYPE: ClassVar[str] = ""

    def to_json(self) -> str:
        return json.dumps({"type": self.TYPE, **asdict(self)}, separators=(",", ":"))


@dataclass(frozen=True)
class StoreAddress:
    """Where the TCPStore of a generation listens."""

    host: str
    port: int


# --- from a worker ---


@dataclass(frozen=True)
class WorkerMessage(Message):
    worker: str

    @staticmethod
    def from_json(line: str) -> "WorkerMessage":
        return _parse(line, _FROM_WORKER)


@dataclass(frozen=True)
class Hello(WorkerMessage):
    """Connected; the script has not started."""

    TYPE: ClassVar[str] = "hello"
    pid: int
    host: str
    port: int = 0  # a free one


@dataclass(frozen=True)
class UsesLibrary(WorkerMessage):
    """The script imported the training library, so more workers make sense."""

    TYPE: ClassVar[str] = "uses_library"


@dataclass(frozen=True)
class UsesProcessGroup(WorkerMessage):
    """The script makes a process group of its own, as under torchrun."""

    TYPE: ClassVar[str] = "uses_process_group"


@dataclass(frozen=True)
class Store(WorkerMessage):
    """Rank 0 of that generation has created its TCPStore."""

    TYPE: ClassVar[str] = "store"
    generation: int
    host: str
    port: int


@dataclass(frozen=True)
class Formed(WorkerMessage):
    """The process groups of that generation are connected."""

    TYPE: ClassVar[str] = "formed"
    generation: int


@dataclass(frozen=True)
class FormFailed(WorkerMessage):
    """The process groups of that generation could not be connected."""

    TYPE: ClassVar[str] = "form_failed"
    generation: int
    error: str


@dataclass(frozen=True)
class Prepared(WorkerMessage):
    """A joiner has reached its first batch and waits for the switch."""

    TYPE: ClassVar[str] = "prepared"


@dataclass(frozen=True)
class Switched(WorkerMessage):
    """Trains in that generation now."""

    TYPE: ClassVar[str] = "switched"
    generation: int
    step: int
    stall_s: float = 0.0  # how long this worker did not train because of it


@dataclass(frozen=True)
class Lost(WorkerMessage):
    """A collective of that generation failed; the worker waits for a new generation."""

    TYPE: ClassVar[str] = "lost"
    generation: int
    step: int
    error: str


@dataclass(frozen=True)
class Progress(WorkerMessage):
    """About once a second, from rank 0 only. `samples` of `pass_size` are done in this pass."""

    TYPE: ClassVar[str] = "progress"
    epoch: int
    step: int
    samples: int
    pass_size: int
    loader: str
    batch_size: int
    local_batch_size: int
    throughput: float  # samples per second, all workers
    generation: int
    epochs: int = 0  # how many the script wants; 0: not known
    # Samples per second that count as much as those of the initial batch size; None where the
    # gradient noise is not measured.
    goodput: float | None = None


@dataclass(frozen=True)
class Metrics(WorkerMessage):
    """What the script reports, such as its loss; at most once a second, from rank 0 only."""

    TYPE: ClassVar[str] = "metrics"
    values: dict[str, float]


@dataclass(frozen=True)
class GoodputReport(WorkerMessage):
    """What rank 0 predicts from the steps that it has measured, after each fit.

    `sizes` has rows of workers, nodes, throughput, goodput and batch size. `perf_params` are those
    of the model of step times, `grad_params` the squared norm and the variance of the gradients,
    if they are measured.
    """

    TYPE: ClassVar[str] = "goodput"
    replicas: int
    nodes: int
    sizes: tuple[tuple[float, ...], ...]
    perf_params: tuple[float, ...]
    grad_params: tuple[float, ...] | None
    init_batch_size: int
    max_batch_size: int | None
    fit_seconds: float

    def model(self) -> dict[str, Any]:
        """The model, for the job's journal."""
        names = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
        values: dict[str, Any] = dict(zip(names, self.perf_params, strict=True))
        if self.grad_params is not None:
            values.update(sqr=self.grad_params[0], var=self.grad_params[1])
        values.update(init_batch_size=self.init_batch_size, max_batch_size=self.max_batch_size)
        return values


@dataclass(frozen=True)
class Checkpointed(WorkerMessage):
    """A durable checkpoint is complete."""

    TYPE: ClassVar[str] = "checkpoint"
    step: int
    path: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Left(WorkerMessage):
    """Was not a member of the new generation and is about to exit 0."""

    TYPE: ClassVar[str] = "left"


@dataclass(frozen=True)
class Note(WorkerMessage):
    """One line for the user and the journal. Levels: info, warning, error."""

    TYPE: ClassVar[str] = "note"
    level: str
    text: str


# --- from the controller ---


@dataclass(frozen=True)
class ControllerMessage(Message):
    @staticmethod
    def from_json(line: str) -> "ControllerMessage":
        return _parse(line, _FROM_CONTROLLER)


@dataclass(frozen=True)
class Generation(ControllerMessage):
    """The next generation: members in rank order, and the node of each.

    Sent without `store` first: rank 0, a survivor where there is one, creates the store and
    answers `Store`. Then sent to every member with `store`; they connect in the background and
    answer `Formed`. `recover` says that the running generation is broken. `master` is where a
    script that makes its own groups, as under torchrun, finds rank 0: only if the job restarts its
    workers to change their number, and then all members get the first message.
    """

    TYPE: ClassVar[str] = "generation"
    generation: int
    members: tuple[str, ...]
    nodes: tuple[str, ...]
    joiners: tuple[str, ...]
    store: StoreAddress | None
    recover: bool
    master: StoreAddress | None = None

    def rank(self, worker: str) -> int:
        return self.members.index(worker)


@dataclass(frozen=True)
class Commit(ControllerMessage):
    """All members formed it and all joiners are prepared: switch at the next common boundary."""

    TYPE: ClassVar[str] = "commit"
    generation: int


@dataclass(frozen=True)
class Cancel(ControllerMessage):
    """Given up before its commit; forget it."""

    TYPE: ClassVar[str] = "cancel"
    generation: int


@dataclass(frozen=True)
class Abort(ControllerMessage):
    """A member of the running generation is gone: give up its collectives now."""

    TYPE: ClassVar[str] = "abort"
    generation: int


@dataclass(frozen=True)
class Checkpoint(ControllerMessage):
    """Write a durable checkpoint at the next boundary."""

    TYPE: ClassVar[str] = "checkpoint"
    reason: str


@dataclass(frozen=True)
class Notice(ControllerMessage):
    """The node of this worker goes away."""

    TYPE: ClassVar[str] = "notice"
    seconds: float


@dataclass(frozen=True)
class Stop(ControllerMessage):
    """Write a durable checkpoint, then exit with 143."""

    TYPE: ClassVar[str] = "stop"


def _by_type(kinds: Iterable[type[_M]]) -> dict[str, type[_M]]:
    return {kind.TYPE: kind for kind in kinds}


_FROM_WORKER: dict[str, type[WorkerMessage]] = _by_type(
    (
        Hello,
        UsesLibrary,
        UsesProcessGroup,
        Store,
        Formed,
        FormFailed,
        Prepared,
        Switched,
        Lost,
        Progress,
        Metrics,
        GoodputReport,
        Checkpointed,
        Left,
        Note,
    )
)
_FROM_CONTROLLER: dict[str, type[ControllerMessage]] = _by_type(
    (Generation, Commit, Cancel, Abort, Checkpoint, Notice, Stop)
)


def _parse(line: str, kinds: dict[str, type[_M]]) -> _M:
    try:
        values: dict[str, Any] = json.loads(line)
        kind = kinds[values.pop("type")]
        # A newer peer may send more than this version knows.
        known = {field.name for field in fields(kind)}
        values = {name: _plain(name, value) for name, value in values.items() if name in known}
        return kind(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedMessage(f"not a message of a training job: {line[:200]!r}") from error


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(tuple(each) if isinstance(each, list) else each for each in value)
    if name in ("store", "master") and value is not None:
        return StoreAddress(**value)
    return value
