"""What happened, as typed records: the only output of everything below the command line.

An operation calls `emit(event)` as it goes along; a renderer, a log or a test is listening.
Nothing here formats for a terminal.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from shoal.core.node_phase import Phase, Role


@dataclass(frozen=True)
class Event:
    """Base of all events. `kind` is the name that `--json` output carries."""

    kind: ClassVar[str]


Emit = Callable[[Event], None]


def ignore_events(event: Event) -> None:
    """The listener of an operation that nobody listens to."""


@dataclass(frozen=True)
class Stage(Event):
    """The operation entered a stage that a person may have to wait for."""

    kind = "stage"
    text: str


@dataclass(frozen=True)
class Warned(Event):
    """Something is odd, or was left out, without stopping the operation."""

    kind = "warning"
    what: str
    why: str = ""
    fix: str = ""
    node: str = ""


@dataclass(frozen=True)
class Found(Event):
    """Something that a look beforehand found. An error would keep the cluster from coming up;
    `place` is where in the file it comes from."""

    kind = "finding"
    severity: Literal["error", "warning"]
    what: str
    why: str = ""
    fix: str = ""
    place: str = ""


@dataclass(frozen=True)
class PlanStep(Event):
    """One thing that is about to be done, and the reason for it."""

    kind = "plan"
    action: Literal["create", "use", "start", "restart", "update", "stop", "terminate", "remove"]
    subject: str
    reason: str


@dataclass(frozen=True)
class PriceItem:
    """Equal machines. `price` is US dollars an hour for one of them, where it is known."""

    count: int
    node_type: str
    machine: str
    market: str
    price: float | None


@dataclass(frozen=True)
class Priced(Event):
    """What the cluster costs an hour, in US dollars. `source` says whose prices they are, and of
    which day. Not `complete` where a price is not known."""

    kind = "price"
    cluster: str
    items: tuple[PriceItem, ...]
    per_hour: float
    complete: bool
    source: str


@dataclass(frozen=True)
class NodeChanged(Event):
    """A node entered a phase, or its phase has something new to say."""

    kind = "node"
    node: str
    node_type: str
    role: Role
    phase: Phase
    detail: str = ""
    address: str = ""


@dataclass(frozen=True)
class LaunchTried(Event):
    """A provider was asked for machines, and gave some, or none and the reason. `price` is US
    dollars an hour for one of them, where it is known."""

    kind = "launch"
    node_type: str
    asked: int
    got: int
    machine: str
    market: str
    zone: str
    price: float | None = None
    refusal: str = ""


@dataclass(frozen=True)
class Output(Event):
    """A line that a command on a node printed."""

    kind = "output"
    node: str
    line: str
    stream: Literal["stdout", "stderr"] = "stdout"


@dataclass(frozen=True)
class Unchanged(Event):
    """The cluster already is what was asked for; nothing was done."""

    kind = "unchanged"
    cluster: str
    why: str


@dataclass(frozen=True)
class ClusterReady(Event):
    """All that was asked for is there. `next_steps` are commands a person may want now."""

    kind = "ready"
    cluster: str
    nodes: int
    seconds: float
    address: str
    dashboard: str = ""
    next_steps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ClusterGone(Event):
    """Nothing of the cluster is left."""

    kind = "gone"
    cluster: str
    nodes: int
    seconds: float


@dataclass(frozen=True)
class ClusterShrunk(Event):
    """Some of the cluster's machines were ended, and the others kept."""

    kind = "shrunk"
    cluster: str
    ended: int
    left: int
    seconds: float


@dataclass(frozen=True)
class ClusterStopped(Event):
    """Ray has ended on all of the cluster's machines, which stay. `still_costs` says in words
    what goes on costing money."""

    kind = "stopped"
    cluster: str
    nodes: int
    seconds: float
    still_costs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Removed(Event):
    """These things, in words, are gone from the account; none, when there was nothing to remove."""

    kind = "removed"
    things: tuple[str, ...]


@dataclass(frozen=True)
class Installed(Event):
    """All of the cluster's machines use this version of Ray from now on."""

    kind = "installed"
    cluster: str
    version: str
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Copied(Event):
    """A file or a tree is now at `target` as it is at `source`."""

    kind = "copied"
    node: str
    source: str
    target: str


@dataclass(frozen=True)
class Detached(Event):
    """A command runs on by itself on a node; `attach` is the command that shows it."""

    kind = "detached"
    node: str
    program: str
    attach: str


@dataclass(frozen=True)
class DashboardOpen(Event):
    """The dashboard can be opened at this address, which lets in whoever has it for as long as
    the operation lasts."""

    kind = "dashboard"
    cluster: str
    url: str


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain data, its kind first."""
    return {"event": event.kind, **_plain(dataclasses.asdict(event))}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
