"""The role of a node in its cluster, and its phases."""

from __future__ import annotations

import enum
from typing import Literal

Role = Literal["head", "worker"]


class Phase(str, enum.Enum):
    """The phases of a node, in order; `STOPPED` and `FAILED` can follow any of them. `UNKNOWN` is
    for a report about a node whose Ray cannot be asked."""

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
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


# The phases of a node that was requested and is not ready yet.
PENDING_PHASES = frozenset(
    {Phase.REQUESTED, Phase.BOOTING, Phase.REACHABLE, Phase.PREPARING, Phase.STARTING}
)
