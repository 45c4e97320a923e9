"""The context of an operation: events, confirmation, clock and local directories."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.core.clock import Clock, SystemClock

if TYPE_CHECKING:  # slow to import, and a command that only runs another needs no events
    from shoal.core.events import Emit


def default_home() -> Path:
    """Shoal's directory on this machine, for caches: they can be deleted at any time."""
    if own := os.environ.get("SHOAL_HOME"):
        return Path(own).expanduser()
    return _cache_home()


def state_directory(home: Path) -> Path:
    """The directory for state that should outlive caches. A home other than the default one, such
    as SHOAL_HOME, holds both."""
    if os.environ.get("SHOAL_HOME") or home != _cache_home():
        return home
    from platformdirs import user_state_path  # not imported on the head, which may lack it

    return user_state_path("shoal", appauthor=False)


def _cache_home() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "shoal"


@dataclass
class ClusterArguments:
    """The command-line arguments that select the cluster of an operation, once it is known."""

    text: str = ""


class Severity(enum.Enum):
    """What "yes" to a question means: `DESTRUCTIVE` if it ends work or deletes data. The answer to
    such a question is no unless the user says yes."""

    NORMAL = enum.auto()
    DESTRUCTIVE = enum.auto()


class Confirm(Protocol):
    """Asks the user a yes-or-no question."""

    def __call__(self, question: str, severity: Severity = Severity.NORMAL, /) -> bool: ...


def always_yes(question: str, severity: Severity = Severity.NORMAL) -> bool:
    """The answer where no user is asked."""
    return True


@dataclass(frozen=True)
class Context:
    """Passed to every operation. `cluster_arguments` completes the commands in hints. `asks` is
    whether `confirm` asks a user, who should know then what the answer means."""

    emit: Emit
    confirm: Confirm = always_yes
    home: Path = field(default_factory=default_home)
    clock: Clock = field(default_factory=SystemClock)
    cluster_arguments: ClusterArguments = field(default_factory=ClusterArguments)
    asks: bool = False

    @property
    def state_directory(self) -> Path:
        return state_directory(self.home)
