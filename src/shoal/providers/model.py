"""The records that providers report and accept. Data only."""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from shoal.core.node_phase import Phase, Role

if TYPE_CHECKING:
    from shoal.core.events import NodeChanged


class State(str, enum.Enum):
    """An instance's state as its provider reports it."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    TERMINATING = "terminating"
    TERMINATED = "terminated"
    # It should exist, but it does not answer.
    UNREACHABLE = "unreachable"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Instance:
    """One machine as its provider reports it.

    `address` is where the rest of its cluster reaches it; `user` and `port` are for SSH.
    `created_at` is None for a host that was not launched. `price_per_hour` is None if it costs
    nothing or the price is unknown; `extras_per_hour` is what its volumes and its public address
    cost in addition, as far as known. `launch_hash` is that of the spec that it was launched from;
    it and `instance_type` are empty if unknown.
    """

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
    extras_per_hour: float = 0.0
    instance_type: str = ""
    launch_hash: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def entered(self, phase: Phase, detail: str = "") -> NodeChanged:
        """The event that this instance's node has entered a phase."""
        from shoal.core.events import NodeChanged  # slow to import, and rarely needed

        return NodeChanged(self.name, self.node_type, self.role, phase, detail, self.address)


def head_of(instances: Iterable[Instance]) -> Instance | None:
    """The head among these instances."""
    return next((i for i in instances if i.role == "head"), None)


@dataclass(frozen=True)
class LaunchRequest:
    """A request for `count` equal instances. The token makes the request idempotent. `market` and
    `zone` are the first choice; empty means as the spec says. `hosts` are the ids of the listed
    hosts to choose from; empty means all. With a `setup_hash`, the instances are launched from the
    image that was baked for it, if there is one."""

    node_type: str
    role: Role
    count: int
    token: str
    market: Literal["", "on-demand", "spot"] = ""
    zone: str = ""
    hosts: tuple[str, ...] = ()
    setup_hash: str = ""


@dataclass(frozen=True)
class SharedMachine:
    """What keeps an instance apart from others whose processes run on the same machine: the
    Python to run Ray with, a directory for Ray's session, where its cluster's token is, and, for
    a head, a block of free ports."""

    python: str
    ray_directory: str
    token_path: str
    ports: range


@dataclass(frozen=True)
class Finding:
    """A problem found by preflight. `at` is the path in the spec that it is about, if any; `check`
    names the check that found it, for users who want to skip it."""

    severity: Literal["error", "warning"]
    what: str
    why: str = ""
    fix: str = ""
    at: tuple[str, ...] = ()
    check: str = ""


def name_check(check: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with the name of the check that found them."""
    return [replace(finding, check=check) for finding in findings]


@dataclass(frozen=True)
class RegistryLogin:
    """User name and password for an image registry."""

    server: str
    username: str
    password: str = field(repr=False)


# How many bytes of disk an image takes at least on an architecture (x86_64, arm64), as its
# registry reports; None if unknown.
ImageSizeLookup = Callable[[str, str], Coroutine[Any, Any, int | None]]
