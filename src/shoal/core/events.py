"""Typed records of what happened: the only output of everything below the command line.

An operation calls `emit(event)` as it proceeds; a renderer, a log or a test receives the events.
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
    """The receiver for operations whose events are not needed."""


@dataclass(frozen=True)
class Stage(Event):
    """The operation entered a stage that may take a while."""

    kind = "stage"
    text: str


@dataclass(frozen=True)
class Warned(Event):
    """Something is wrong or was skipped; the operation continues."""

    kind = "warning"
    what: str
    why: str = ""
    fix: str = ""
    node: str = ""


@dataclass(frozen=True)
class PreflightFinding(Event):
    """A problem that a preflight check found. An error would make `up` fail; `location` is the
    position in the cluster's file that causes it, `check` the name by which `up` can skip the
    check."""

    kind = "finding"
    severity: Literal["error", "warning"]
    what: str
    why: str = ""
    fix: str = ""
    location: str = ""
    check: str = ""


@dataclass(frozen=True)
class PlanStep(Event):
    """An action that is about to be taken, and its reason."""

    kind = "plan"
    action: Literal[
        "create", "use", "start", "restart", "update", "stop", "drain", "terminate", "remove"
    ]
    subject: str
    reason: str


@dataclass(frozen=True)
class PriceItem:
    """Equal instances. `price` is US dollars per hour for one of them, None if unknown; `disks`
    are its volumes, and `disks_price` is what they cost in addition."""

    count: int
    node_type: str
    instance_type: str
    market: str
    price: float | None
    disks: str = ""
    disks_price: float = 0.0


@dataclass(frozen=True)
class PriceEstimated(Event):
    """The price of the cluster in US dollars per hour. `source` names the origin and date of the
    prices. `complete` is false if the price of an item is unknown."""

    kind = "price"
    cluster: str
    items: tuple[PriceItem, ...]
    per_hour: float
    complete: bool
    source: str


@dataclass(frozen=True)
class ImageChosen(Event):
    """What the nodes of a type are launched from, in a cluster that bakes images. Nodes start from
    `base` while an image is not complete (`pending`) or does not exist (`to be baked`).
    `snapshots` is the size and the price of a baked image as text."""

    kind = "image"
    node_type: str
    role: Role
    image: str
    base: str
    state: Literal["baked", "pending", "to be baked", "not baked"]
    snapshots: str = ""


@dataclass(frozen=True)
class NodeChanged(Event):
    """A node entered a phase, or the detail of its phase changed."""

    kind = "node"
    node: str
    node_type: str
    role: Role
    phase: Phase
    detail: str = ""
    address: str = ""


@dataclass(frozen=True)
class LaunchAttempted(Event):
    """A provider launched some or all of the requested instances, or none because of `error`.
    `price` is US dollars per hour for one of them, None if unknown."""

    kind = "launch"
    node_type: str
    requested: int
    launched: int
    instance_type: str
    market: str
    zone: str
    price: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Output(Event):
    """A line that a command on a node printed."""

    kind = "output"
    node: str
    line: str
    stream: Literal["stdout", "stderr"] = "stdout"


@dataclass(frozen=True)
class Unchanged(Event):
    """The cluster already matches what was requested; nothing was done."""

    kind = "unchanged"
    cluster: str
    why: str


@dataclass(frozen=True)
class SettingsApplied(Event):
    """The controller of a running cluster got new settings, or was started; the nodes that run
    are unchanged for now."""

    kind = "applied"
    cluster: str
    changes: tuple[str, ...]


@dataclass(frozen=True)
class ClusterReady(Event):
    """Everything that was requested is ready. `next_steps` are commands that may be useful now."""

    kind = "ready"
    cluster: str
    nodes: int
    seconds: float
    address: str
    dashboard: str = ""
    next_steps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ClusterGone(Event):
    """The cluster no longer exists."""

    kind = "gone"
    cluster: str
    nodes: int
    seconds: float


@dataclass(frozen=True)
class ClusterScaledDown(Event):
    """Some of the cluster's nodes were terminated, and the others kept."""

    kind = "scaled_down"
    cluster: str
    terminated: int
    remaining: int
    seconds: float


@dataclass(frozen=True)
class ClusterStopped(Event):
    """Ray is stopped on all of the cluster's instances, which are kept. `ongoing_costs` lists what
    continues to cost money."""

    kind = "stopped"
    cluster: str
    nodes: int
    seconds: float
    ongoing_costs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResourcesDeleted(Event):
    """These resources were deleted from the account; empty if there was nothing to delete."""

    kind = "deleted"
    resources: tuple[str, ...]


@dataclass(frozen=True)
class RayInstalled(Event):
    """All of the cluster's hosts use this version of Ray from now on."""

    kind = "installed"
    cluster: str
    version: str
    nodes: int
    seconds: float


@dataclass(frozen=True)
class FilesCopied(Event):
    """A file or a directory was copied from `source` to `target`."""

    kind = "copied"
    node: str
    source: str
    target: str


@dataclass(frozen=True)
class CommandDetached(Event):
    """A command runs in the background on a node, in a terminal `multiplexer`; `attach` is the
    command that shows it."""

    kind = "detached"
    node: str
    multiplexer: str
    attach: str


@dataclass(frozen=True)
class JobSubmitted(Event):
    """A Ray job was started. It goes on if this program ends."""

    kind = "job_submitted"
    job: str


@dataclass(frozen=True)
class JobContinues(Event):
    """A Ray job goes on without this program."""

    kind = "job_continues"
    job: str


@dataclass(frozen=True)
class DashboardOpened(Event):
    """The dashboard is available at this URL until the operation ends. The URL grants access, so it
    is a secret."""

    kind = "dashboard"
    cluster: str
    url: str


def to_json(event: Event) -> dict[str, Any]:
    """The event as plain data, its kind first."""
    return {"event": event.kind, **_jsonable(dataclasses.asdict(event))}


def _jsonable(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {k: _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    return value
