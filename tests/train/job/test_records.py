from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shoal.core.errors import NotFoundError
from shoal.train.job.job_spec import HEARTBEAT_FILE, JOB_FILE, OUTPUT_LOG, STATUS_FILE, JobSpec
from shoal.train.job.journal import Journal
from shoal.train.job.records import list_jobs, load_spec, read_log, read_reasons


def make_job(root: Path, id: str, **spec: float) -> Path:
    directory = root / id
    directory.mkdir()
    (directory / JOB_FILE).write_text(JobSpec(id, "code.py", ("--x", "1"), **spec).to_json())  # type: ignore[arg-type]
    return directory


async def test_jobs_are_listed_with_their_state_and_progress(tmp_path: Path) -> None:
    done = make_job(tmp_path, "done", created=1.0)
    (done / STATUS_FILE).write_text(json.dumps({"status": 0}))
    failed = make_job(tmp_path, "failed", created=2.0)
    (failed / STATUS_FILE).write_text(json.dumps({"status": 3}))
    stopped = make_job(tmp_path, "stopped", created=2.5)
    (stopped / STATUS_FILE).write_text(json.dumps({"status": 143}))
    running = make_job(tmp_path, "running", created=3.0)
    (running / HEARTBEAT_FILE).touch()
    Journal(running).add("progress", epoch=2, step=40, workers=3, batch_size=8, throughput=1.5)
    lost = make_job(tmp_path, "lost", created=4.0)
    (lost / HEARTBEAT_FILE).touch()
    os.utime(lost / HEARTBEAT_FILE, (0, 0))
    jobs = list_jobs(tmp_path)
    assert [(j["job"], j["state"], j["status"]) for j in jobs] == [
        ("lost", "lost", None), ("running", "running", None), ("stopped", "stopped", 143),
        ("failed", "failed", 3), ("done", "succeeded", 0),
    ]  # fmt: skip
    assert (jobs[1]["epoch"], jobs[1]["step"], jobs[1]["workers"]) == (2, 40, 3)


def test_without_jobs_the_list_is_empty(tmp_path: Path) -> None:
    assert list_jobs(tmp_path / "missing") == []


def test_a_spec_reads_back_as_it_was_written(tmp_path: Path) -> None:
    spec = load_spec(make_job(tmp_path, "a"))
    assert spec.arguments == ("--x", "1")
    assert JobSpec.from_json(spec.to_json()) == spec


def test_logs_are_those_of_rank_0_or_of_one_worker(tmp_path: Path) -> None:
    job = make_job(tmp_path, "a")
    assert list(read_log(job)) == []
    (job / OUTPUT_LOG).write_text("one\ntwo\n")
    logs = job / "node-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "w2.log").write_text("from w2")
    assert list(read_log(job)) == ["one", "two"]
    assert list(read_log(job, "w2")) == ["from w2"]
    with pytest.raises(NotFoundError):
        list(read_log(job, "w9"))


async def test_reasons_leave_out_progress_and_notes(tmp_path: Path) -> None:
    job = make_job(tmp_path, "a")
    journal = Journal(job)
    journal.add("progress", step=1)
    journal.add("generation", "2 workers: w2 joined", generation=2)
    assert [e["kind"] for e in read_reasons(job)] == ["generation"]


@pytest.mark.parametrize("read", [load_spec, read_reasons, lambda d: list(read_log(d))])
def test_an_unknown_job_is_named(tmp_path: Path, read: object) -> None:
    with pytest.raises(NotFoundError, match="unknown job: nope"):
        read(tmp_path / "nope")  # type: ignore[operator]
