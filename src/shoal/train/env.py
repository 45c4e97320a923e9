"""What a script may ask about the job it runs in, by AdaptDL's names.

Every function reads at call time: in a job the answers change with each generation.
"""

from __future__ import annotations

import os
from typing import Protocol


class Place(Protocol):
    """Where this worker stands in its job, as the running session knows it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def num_restarts(self) -> int: ...


class _PlaceInEnvironment:
    """What the environment says: before the first generation, and without a job."""

    @property
    def rank(self) -> int:
        return _integer("ADAPTDL_REPLICA_RANK", 0)

    @property
    def size(self) -> int:
        return _integer("ADAPTDL_NUM_REPLICAS", 1)

    @property
    def num_nodes(self) -> int:
        return _integer("ADAPTDL_NUM_NODES", self.size)

    @property
    def num_restarts(self) -> int:
        return _integer("ADAPTDL_NUM_RESTARTS", 0)


PLACE_IN_ENVIRONMENT = _PlaceInEnvironment()
_place: Place | None = None


def set_place(place: Place | None) -> None:
    """From here on, rank and sizes come from the session."""
    global _place
    _place = place


def has_place() -> bool:
    """Whether a session knows rank and sizes; otherwise the environment does."""
    return _place is not None


def checkpoint_path() -> str | None:
    """The directory or URL of durable checkpoints, or None."""
    return os.environ.get("SHOAL_TRAIN_CHECKPOINT_DIR") or os.environ.get("ADAPTDL_CHECKPOINT_PATH")


def resumes() -> bool:
    """Whether the job continues an earlier run, which has written checkpoints."""
    return bool(os.environ.get("SHOAL_TRAIN_RESUMES"))


def share_path() -> str | None:
    """A directory that all workers of a node share, for data sets."""
    return os.environ.get("ADAPTDL_SHARE_PATH")


def job_id() -> str | None:
    return os.environ.get("ADAPTDL_JOB_ID")


def master_addr() -> str:
    return os.environ.get("ADAPTDL_MASTER_ADDR", "0.0.0.0")


def master_port() -> int:
    return _integer("ADAPTDL_MASTER_PORT", 0)


def replica_rank() -> int:
    return (_place or PLACE_IN_ENVIRONMENT).rank


def num_nodes() -> int:
    return (_place or PLACE_IN_ENVIRONMENT).num_nodes


def num_replicas() -> int:
    return (_place or PLACE_IN_ENVIRONMENT).size


def num_restarts() -> int:
    """How often the membership has changed."""
    return (_place or PLACE_IN_ENVIRONMENT).num_restarts


def adaptdl_sched_version() -> str | None:
    return os.environ.get("ADAPTDL_SCHED_VERSION")


def supervisor_url() -> str | None:
    return os.environ.get("ADAPTDL_SUPERVISOR_URL")


def from_ray() -> bool:
    return "SHOAL_TRAIN_SOCKET" in os.environ or "ADAPTDL_TUNE_TRIAL_SCHED" in os.environ


def _integer(name: str, default: int) -> int:
    return int(os.environ.get(name, default))
