"""Where machines come from: the verbs every provider has, and what it reports.

A provider creates, finds and ends machines. It knows nothing of policy: not how many there
should be, not what runs on them. Its refusals are the classes in `shoal.errors`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shoal.events import Role
from shoal.remote.base import Runner
from shoal.spec.model import ClusterSpec


class State(str, enum.Enum):
    """An instance's state as its provider reports it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Instance:
    """One machine as its provider reports it. `address` is how its cluster reaches it."""

    id: str
    cluster: str
    name: str
    node_type: str
    role: Role
    state: State
    address: str
    created_at: float
    public_address: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """A wish for `count` equal machines. The token makes asking twice the same as asking once."""

    node_type: str
    role: Role
    count: int
    token: str


@dataclass(frozen=True)
class Finding:
    """Something that a check found before any money was spent."""

    severity: Literal["error", "warning"]
    what: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class RayStart:
    """How Ray is started on one machine: shell commands, the environment they need, and where
    the cluster's GCS then listens. `python` is the interpreter there that has Ray."""

    commands: tuple[str, ...]
    env: Mapping[str, str]
    gcs_address: str
    python: str
    dashboard: str = ""

    def driver_env(self) -> dict[str, str]:
        """What a program on the head needs so that `ray.init()` finds this cluster."""
        inherited = {k: v for k, v in self.env.items() if k.startswith("RAY_AUTH_")}
        return {"RAY_ADDRESS": self.gcs_address, **inherited}


class Provider(Protocol):
    """The verbs. All may raise `ProviderError`; all but `create` may be repeated freely, and
    `create` too, with the same tokens."""

    async def check(self, spec: ClusterSpec) -> Sequence[Finding]:
        """What stands in the way of `spec`, found without creating anything."""
        ...

    async def create(self, spec: ClusterSpec, launches: Sequence[Launch]) -> Sequence[Instance]:
        """Ask for machines. Intent is on record before the first one exists, so that whoever
        comes after a crash finds them by `find`."""
        ...

    async def find(self, cluster: str | None = None) -> Sequence[Instance]:
        """The machines of one cluster, or of every cluster that this provider can see."""
        ...

    async def halt(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        """End what runs on these machines for the cluster. The machines stay."""
        ...

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        """End machines and return when the provider says that they are gone."""
        ...

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        """The way to run things on this machine."""
        ...

    def ray_start(self, spec: ClusterSpec, instance: Instance, head: Instance) -> RayStart:
        """How this machine becomes a node of the cluster that `head` leads."""
        ...
