"""What every operation is given: where to speak, what time it is, where local state lies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal.core.clock import Clock, SystemClock
from shoal.core.events import Emit


def default_home() -> Path:
    """Shoal's directory on this machine. All that it keeps here can be lost without harm."""
    if own := os.environ.get("SHOAL_HOME"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "shoal"


@dataclass(frozen=True)
class Context:
    """Passed to every operation. `confirm` asks the person a yes-or-no question."""

    emit: Emit
    confirm: Callable[[str], bool] = lambda question: True
    home: Path = field(default_factory=default_home)
    clock: Clock = field(default_factory=SystemClock)
