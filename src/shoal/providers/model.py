"""What providers report and are asked for, as data."""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.core.events import NodeChanged
from shoal.core.node_phase import Phase, Role


class State(str, enum.Enum):
    """An instance's state as its provider reports it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    # It should be there, but nobody can say.
    UNREACHABLE = "unreachable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Instance:
    """One machine as its provider reports it. `address` is how its cluster reaches it, and
    `created_at` is None for one that was always there; `user` and `port` are for logging in.
    `price_per_hour` is None where nobody asks for money, or nobody knows how much. `machine` is
    what its provider sells it as, and `made_from` the launch hash of the file that asked for it;
    both are empty where nobody can tell."""

    id: str
    cluster: str
    name: str
    node_type: str
    role: Role
    state: State
    address: str
    created_at: float | None
    public_address: str = ""
    user: str = ""
    port: int | None = None
    market: str = ""
    zone: str = ""
    price_per_hour: float | None = None
    machine: str = ""
    made_from: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def entered(self, phase: Phase, detail: str = "") -> NodeChanged:
        """The event that this machine's node is in a phase now."""
        return NodeChanged(self.name, self.node_type, self.role, phase, detail, self.address)


@dataclass(frozen=True)
class LaunchRequest:
    """A wish for `count` equal machines. The token makes asking twice the same as asking once.
    `market` and `zone` are where to ask first; empty: as the file says."""

    node_type: str
    role: Role
    count: int
    token: str
    market: Literal["", "on-demand", "spot"] = ""
    zone: str = ""


@dataclass(frozen=True)
class Finding:
    """Something that a check found before any money was spent. `at` is the place in the spec that
    it is about, if there is one."""

    severity: Literal["error", "warning"]
    what: str
    why: str = ""
    fix: str = ""
    at: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegistryLogin:
    """Name and password for a registry of images."""

    server: str
    username: str
    password: str = field(repr=False)


# How many bytes of a disk an image for this architecture (x86_64, arm64) takes at least, as its
# registry tells; None where nobody does.
ImageSizeLookup = Callable[[str, str], Coroutine[Any, Any, int | None]]
