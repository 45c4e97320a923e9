"""What a training job reports, as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from shoal.core.events import Event


@dataclass(frozen=True)
class TrainStarted(Event):
    """The job runs on the cluster, and goes on if this program ends."""

    kind = "train_started"
    job: str


@dataclass(frozen=True)
class TrainOutput(Event):
    """A line that the script printed on rank 0."""

    kind = "train_output"
    line: str


@dataclass(frozen=True)
class TrainNote(Event):
    """Something happened to the job that its user should know."""

    kind = "train_note"
    text: str
    level: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True)
class TrainProgress(Event):
    """About once a second. `seconds_left` is None where the script's number of epochs is not known
    or nothing is measured yet; `pass_seconds_left` is for this pass over the data."""

    kind = "train_progress"
    epoch: int
    step: int
    workers: int
    batch_size: int
    throughput: float
    epochs: int = 0
    pass_seconds_left: float | None = None
    seconds_left: float | None = None

    @staticmethod
    def from_entry(entry: dict[str, Any]) -> TrainProgress:
        throughput = float(entry["throughput"])
        left = total = None
        if throughput > 0 and entry["pass_size"]:
            left = max(0, entry["pass_size"] - entry["samples"]) / throughput
            if entry.get("epochs"):
                remaining = max(0, entry["epochs"] - entry["epoch"] - 1)
                total = left + remaining * entry["pass_size"] / throughput
        return TrainProgress(
            entry["epoch"], entry["step"], entry["workers"], entry["batch_size"], throughput,
            entry.get("epochs", 0), left, total,
        )  # fmt: skip
