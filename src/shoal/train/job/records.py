"""Reads the files of jobs on this machine: which there are, what they printed, and why they
changed. Needs no Ray."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.core.errors import NotFoundError
from shoal.train.job.job_spec import (
    HEARTBEAT_FILE,
    JOB_FILE,
    JOURNAL_FILE,
    OUTPUT_LOG,
    STATUS_FILE,
    JobSpec,
)
from shoal.train.job.journal import Entry, read_journal

# A controller that was killed comes back within seconds.
_ALIVE_S = 30.0
_LAST_LINES = 20_000
_ENDED = {0: "succeeded", 143: "stopped"}
_REASONS = {
    "started", "resize", "decision", "share", "kind", "announce", "cancel", "commit",
    "generation", "worker_lost", "node_lost", "notice", "all_lost", "restart", "restored",
    "discard", "form_failed", "checkpoint", "stop", "end",
}  # fmt: skip


def load_spec(directory: Path) -> JobSpec:
    try:
        return JobSpec.from_json((directory / JOB_FILE).read_text())
    except OSError:
        raise _unknown(directory) from None


def list_jobs(directory: Path) -> list[dict[str, Any]]:
    """The jobs on this machine, the newest first: id, script, state, status and last progress."""
    jobs = []
    for path in directory.glob(f"*/{JOB_FILE}"):
        spec = JobSpec.from_json(path.read_text())
        entries = read_journal(path.parent / JOURNAL_FILE)
        progress = next((e for e in reversed(entries) if e["kind"] == "progress"), {})
        keys = ("epoch", "step", "workers", "batch_size", "throughput")
        jobs.append(
            {
                "job": spec.id,
                "script": spec.script,
                "created": spec.created,
                **_state(path.parent),
                **{key: progress[key] for key in keys if key in progress},
            }
        )
    return sorted(jobs, key=lambda job: float(job["created"]), reverse=True)


def read_log(directory: Path, worker: str = "") -> Iterator[str]:
    """What the script printed: rank 0, or one worker."""
    if not directory.is_dir():
        raise _unknown(directory)
    paths = sorted(directory.glob(f"node-*/logs/{worker}.log")) if worker else []
    path = paths[-1] if paths else directory / OUTPUT_LOG
    if worker and not paths:
        raise NotFoundError(f"no log of worker {worker} on this node")
    if path.exists():
        with path.open(errors="replace") as file:
            yield from (line.rstrip("\n") for line in deque(file, maxlen=_LAST_LINES))


def read_reasons(directory: Path) -> list[Entry]:
    """What changed the job's workers, and why."""
    if not directory.is_dir():
        raise _unknown(directory)
    return [e for e in read_journal(directory / JOURNAL_FILE) if e["kind"] in _REASONS]


def _state(directory: Path) -> dict[str, Any]:
    try:
        status = int(json.loads((directory / STATUS_FILE).read_text())["status"])
        return {"state": _ENDED.get(status, "failed"), "status": status}
    except (OSError, ValueError, KeyError):
        pass
    try:
        age = time.time() - (directory / HEARTBEAT_FILE).stat().st_mtime
    except OSError:
        age = time.time() - directory.stat().st_mtime
    return {"state": "running" if age < _ALIVE_S else "lost", "status": None}


def _unknown(directory: Path) -> NotFoundError:
    return NotFoundError(f"unknown job: {directory.name}", fix="list the jobs: shoal train list")
