"""What `Membership` is given and what it returns, as data: it performs nothing itself."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.train.messages import ControllerMessage, Generation


@dataclass(frozen=True)
class RequestWorker:
    """Request resources for a new worker; answered with `placed`."""

    worker: str


@dataclass(frozen=True)
class StartWorker:
    """Start the process on its node. `rank` and `replicas` are those of its first generation as
    far as known."""

    worker: str
    node: str
    rank: int
    replicas: int
    restarts: int


@dataclass(frozen=True)
class KillWorker:
    """Kill the process; its exit is expected."""

    worker: str
    node: str


@dataclass(frozen=True)
class SignalWorker:
    """Send a signal to the process. The worker keeps its resources, and starts again later."""

    worker: str
    node: str
    signal: int


@dataclass(frozen=True)
class ReleaseWorker:
    """Release the resources of a worker that has no process any more, or never had one."""

    worker: str


@dataclass(frozen=True)
class Send:
    worker: str
    node: str
    message: ControllerMessage


@dataclass(frozen=True)
class Record:
    """An entry of the journal. `text` is also shown to the user if there is one."""

    kind: str
    text: str = ""
    level: str = "info"
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finish:
    """The job is over: kill what still runs, release everything, and exit with `status`."""

    status: int
    what: str = ""
    why: str = ""
    output: tuple[str, ...] = ()


Action = (
    RequestWorker | StartWorker | KillWorker | SignalWorker | ReleaseWorker | Send | Record | Finish
)


@dataclass(frozen=True)
class Exit:
    """How a process ended: `code` if by itself, else `signal`. `frozen` if the agent killed it
    because it was stopped. `lines` are the last it printed."""

    code: int | None = None
    signal: int | None = None
    frozen: bool = False
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.frozen:
            return "was stopped (SIGSTOP) and killed"
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        return f"exited with status {self.code}"


@dataclass(frozen=True)
class WorkerReport:
    """What an agent knows of a worker, from which a restarted controller rebuilds its state."""

    worker: str
    node: str
    connected: bool = False
    uses_library: bool = False
    prepared: bool = False
    switched: int = 0  # the generation it trains in; 0: none
    step: int = 0
    last: Generation | None = None  # the newest generation that was announced to it
    current: Generation | None = None  # the generation it trains in
    committed: int = 0  # the newest generation that was committed to it


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
