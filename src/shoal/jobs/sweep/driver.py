"""The driver of a sweep: a Ray job on the head, which goes on when the laptop is gone. It submits
every run as a Ray task, so that the cluster sees the whole demand, and stores the results.

A driver that is started again in the same directory goes on with what is not done.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from shoal.core.atomic_write import write_atomically
from shoal.core.errors import ShoalError
from shoal.core.file_lock import FileLock
from shoal.jobs.sweep import metrics, run_guard, run_process, run_task, tensorboard
from shoal.jobs.sweep.driver_files import LOCK_FILE, PROGRESS_FILE
from shoal.jobs.sweep.journal import Journal, Result, read_lines
from shoal.jobs.sweep.progress import Pace, Progress
from shoal.jobs.sweep.sweep_spec import SPEC_FILE, Run, SweepSpec

_log = logging.getLogger(__name__)

_LOCK_S = 60.0
_POLL_S = 0.2
_PROGRESS_S = 1.0
_RESOURCES_S = 2.0
# Ray's own queue is long enough for the autoscaler to see, and short enough to poll.
_IN_FLIGHT = 10_000
# Results that are in memory at the same time.
_BATCH = 50
# A run that takes its node down should not take down every node.
_MAX_LOST = 3


@dataclass(frozen=True)
class Attempt:
    run: Run
    failures: int = 0
    losses: int = 0


def drive(directory: Path, attempt: int) -> int:
    """Run what is not done, and return how many runs have failed. `attempt` is the number of this
    driver, which its last line in the journal repeats."""
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / LOCK_FILE) as lock:
        if not lock.acquire_within(_LOCK_S):
            raise ShoalError(
                f"another driver runs the sweep in {directory}",
                why=f"it did not end within {_LOCK_S:g} s",
            )
        spec = SweepSpec.from_json((directory / SPEC_FILE).read_text())
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        try:
            driver = Driver(spec, Journal(directory))
            stopped = driver.run()
            driver.journal.append({"event": "end", "attempt": attempt, "stopped": stopped})
            return driver.failed
        finally:
            ray.shutdown()


class Driver:
    """`failed` counts the failed runs, those of earlier drivers included."""

    def __init__(self, spec: SweepSpec, journal: Journal) -> None:
        self.journal = journal
        self._spec = spec
        self.failed = 0
        self._pace = Pace()
        self._pending: dict[Any, Attempt] = {}
        self._queue: deque[Attempt] = deque()
        self._running = self._nodes = 0
        self._progress_at = self._resources_at = 0.0
        done = self._completed()
        self._done = len(done)
        self._queue.extend(Attempt(run) for run in spec.runs if run.number not in done)
        for module in (run_task, run_process, run_guard, metrics, tensorboard):
            # The nodes may not have Shoal, or another version of it.
            cloudpickle.register_pickle_by_value(module)
        self._task = ray.remote(run_task.task).options(
            num_cpus=spec.cpus, num_gpus=spec.gpus, max_retries=0, name=f"sweep {spec.id}"
        )

    def run(self) -> str:
        """Returns why the sweep was stopped early, or an empty text."""
        while self._queue or self._pending:
            self._submit()
            # Returns early only if all have ended: one poll handles all results since the last.
            ready, _ = ray.wait(
                list(self._pending), num_returns=len(self._pending), timeout=_POLL_S
            )
            for at in range(0, len(ready), _BATCH):
                refs = ready[at : at + _BATCH]
                for ref, outcome in zip(refs, _outcomes(refs), strict=True):
                    self._ended(self._pending.pop(ref), outcome)
            limit = self._spec.max_failures
            if limit and self.failed >= limit:
                self._cancel()
                return f"{self.failed} runs have failed"
            self._report()
        self._report(force=True)
        return ""

    def _completed(self) -> set[int]:
        results: dict[int, Result] = {}
        requests = set()
        for entry in read_lines(self.journal.directory):
            if "status" in entry:
                results[entry["run"]] = entry
            elif entry.get("event") == "repeat":
                requests.add(entry["request"])
                results = {n: r for n, r in results.items() if r["status"] == "ok"}
        request = self._spec.repeat_failed
        if request and request not in requests:
            results = {n: r for n, r in results.items() if r["status"] == "ok"}
            self.journal.append({"event": "repeat", "request": request})
        self.failed = sum(result["status"] != "ok" for result in results.values())
        wanted = {run.number for run in self._spec.runs}
        return (set(results) | set(self._spec.skip)) & wanted

    def _submit(self) -> None:
        while self._queue and len(self._pending) < _IN_FLIGHT:
            attempt = self._queue.popleft()
            self._pending[self._task.remote(self._request(attempt.run))] = attempt

    def _request(self, run: Run) -> dict[str, Any]:
        spec = self._spec
        return {
            "sweep": spec.id,
            "run": run.number,
            "argv": spec.argv(run),
            "code": spec.code,
            "time_limit_s": spec.time_limit_s,
            "output_bytes": spec.output_bytes,
            "artifact_bytes": spec.artifact_bytes,
        }

    def _ended(self, attempt: Attempt, outcome: Result | Exception) -> None:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            result = outcome
            output = result.pop("output")
            archive = _archive(result.pop("archive"), result.pop("chunks"))
            if result["status"] == "failed" and attempt.failures < self._spec.retries:
                self._queue.append(replace(attempt, failures=attempt.failures + 1))
                return
            self._write(attempt, result, output, archive)
            self._pace.add(result["seconds"])
        except ray.exceptions.RayError as error:
            self._lost(attempt, error)

    def _lost(self, attempt: Attempt, error: Exception) -> None:
        """The node or its Ray worker is gone, or Ray killed the run for its memory."""
        _log.info("run %d: %s", attempt.run.number, error)
        if attempt.losses < _MAX_LOST + self._spec.retries:
            self._queue.append(replace(attempt, losses=attempt.losses + 1))
            return
        lines = str(error).splitlines()
        result = {
            "run": attempt.run.number, "status": "lost", "exit_code": None,
            "why": f"{type(error).__name__}, {attempt.losses + 1} times", "tail": lines[:20],
            "started": time.time(), "seconds": 0.0, "node": "", "metrics": {}, "notes": [],
        }  # fmt: skip
        self._write(attempt, result, str(error).encode(), iter(()))

    def _write(
        self, attempt: Attempt, result: Result, output: bytes, archive: Iterator[bytes]
    ) -> None:
        result["params"] = attempt.run.params
        result["attempts"] = 1 + attempt.failures + attempt.losses
        self.journal.write_run(result, output, archive)
        self._done += 1
        self.failed += result["status"] != "ok"

    def _cancel(self) -> None:
        self._queue.clear()
        for ref in self._pending:
            ray.cancel(ref, force=True)
        self._pending.clear()

    def _report(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if now - self._resources_at >= _RESOURCES_S:
            self._resources_at = now
            self._running, self._nodes = self._usage()
        if not force and now - self._progress_at < _PROGRESS_S:
            return
        self._progress_at = now
        unfinished = len(self._pending) + len(self._queue)
        running = min(unfinished, self._running)
        progress = Progress(
            total=len(self._spec.runs), done=self._done, failed=self.failed, running=running,
            nodes=self._nodes, seconds_left=self._pace.seconds_left(unfinished, running),
        )  # fmt: skip
        path = self.journal.directory / PROGRESS_FILE
        write_atomically(path, json.dumps(progress.to_entry()))

    def _usage(self) -> tuple[int, int]:
        """How many runs the resources in use are for, and the number of nodes."""
        total, free = ray.cluster_resources(), ray.available_resources()
        counts = [
            round((total.get(name, 0) - free.get(name, 0)) / amount)
            for name, amount in (("CPU", self._spec.cpus), ("GPU", self._spec.gpus))
            if amount
        ]
        nodes = sum(name.startswith("node:") and "__" not in name for name in total)
        return min(counts, default=len(self._pending)), nodes


def _outcomes(refs: Sequence[Any]) -> list[Result | Exception]:
    """The results of tasks that have ended, or what went wrong. One call for all of them takes a
    fraction of the time, but fails with the first."""
    try:
        return list(ray.get(refs))
    except ray.exceptions.RayError as error:
        if len(refs) == 1:
            return [error]
    return [outcome for ref in refs for outcome in _outcomes([ref])]


def _archive(archive: bytes, chunks: list[Any]) -> Iterator[bytes]:
    if archive:
        yield archive
    for ref in chunks:
        yield ray.get(ref)
