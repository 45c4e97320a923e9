"""The role of a node in its cluster, and its phases."""

from __future__ import annotations

import enum
from typing import Literal

Role = Literal["head", "worker"]


class Phase(str, enum.Enum):
    """The phases of a node, in order; `STOPPED` and `FAILED` can follow any of them."""

    REQUESTED = "requested"
    BOOTING = "booting"
    REACHABLE = "reachable"
    PREPARING = "preparing"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    TERMINATING = "terminating"
    GONE = "gone"
    STOPPED = "stopped"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value
