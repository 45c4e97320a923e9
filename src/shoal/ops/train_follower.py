"""Turns what the program of a training job prints on the head into events and errors."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.events import Emit
from shoal.remote.runner import Completed
from shoal.train.job.job_events import TrainNote, TrainOutput, TrainProgress, TrainStarted

_log = logging.getLogger(__name__)


class JobError(ShoalError):
    """The job failed; `exit_code` is the script's status."""

    label = "train"

    def __init__(self, status: int, what: str, **details: Any) -> None:
        super().__init__(what, **details)
        self.exit_code = status  # type: ignore[misc]


@dataclass
class Follower:
    """`next` is the number of the job's next journal entry, `results` are the answers to a
    query."""

    emit: Emit
    started: bool = False
    next: int = 0
    end: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    def line(self, line: str, stream: str) -> None:
        entry = None
        if stream == "stdout":
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
        if isinstance(entry, dict) and "kind" in entry:
            self._entry(entry)
        else:
            _log.info("head: %s", line)

    def _entry(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "output":
            for line in entry["lines"]:
                self.emit(TrainOutput(line))
        elif kind == "progress":
            self.emit(TrainProgress.from_entry(entry))
        elif kind == "job_started":
            self.started = True
            self.emit(TrainStarted(entry["job"]))
        elif kind == "error":
            self.failure = entry
        elif kind == "end":
            self.end = entry
        elif kind in ("job", "reason"):
            self.results.append(entry)
        elif entry.get("text"):
            self.emit(TrainNote(entry["text"], entry.get("level", "info")))
        self.next = max(self.next, entry.get("number", -1) + 1)

    def status(self, done: Completed) -> int:
        """The status of the job. Raises what the user has to know about its failure."""
        if (entry := self.failure) is not None:
            raise JobError(entry["exit_code"], entry["what"], why=entry["why"], fix=entry["fix"])
        if (entry := self.end) is not None and entry["status"] != 0:
            what = entry.get("text") or entry.get("what") or "the job failed"
            raise JobError(entry["status"], what, why=entry["why"], output=entry["output"])
        if self.end is None and not done.ok:
            raise ShoalError("the job could not be started", output=done.tail)
        return done.code
