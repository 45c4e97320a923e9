"""A training script on workers that come, go and die: it must end as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.train import messages
from tests.polling import until
from tests.train.local_job import LocalJob
from tests.train.scripts import audited
from tests.train.training_audit import assert_as_if_undisturbed, epochs

pytestmark = pytest.mark.workers

_SCRIPT = Path(audited.__file__)
_QUICK_STEPS = {"PAUSE": "0.005"}


def _finish(job: LocalJob, directory: Path) -> None:
    (directory / "enough").touch()
    assert job.wait_for_end().status == 0, job.describe()


@pytest.mark.long
def test_workers_join_and_leave_while_the_script_trains(tmp_path: Path) -> None:
    with LocalJob(_SCRIPT, tmp_path) as job:
        job.wait_for_workers(1)
        job.resize(3)
        job.wait_for_workers(3)
        job.resize(2)
        job.wait_for_workers(2)
        _finish(job, tmp_path)
        assert {line["workers"] for line in epochs(tmp_path)} >= {1, 2}
        assert_as_if_undisturbed(tmp_path)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_worker_costs_no_sample_and_is_replaced(tmp_path: Path, rank: int) -> None:
    with LocalJob(_SCRIPT, tmp_path, workers=2, minimum=2) as job:
        job.wait_for_workers(2)
        job.wait_for_step(30)
        killed = job.members()[rank]
        job.signal(killed)
        job.wait_until(lambda: killed not in job.members() and len(job.members()) == 2)
        _finish(job, tmp_path)
        assert_as_if_undisturbed(tmp_path, allow_lost_counts=audited.BATCH)


@pytest.mark.long  # job/test_training_on_hosts.py has the same with real hosts
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_whose_machine_falls_silent_costs_no_sample(tmp_path: Path, rank: int) -> None:
    with LocalJob(_SCRIPT, tmp_path, workers=2, minimum=2, environment=_QUICK_STEPS) as job:
        job.wait_for_workers(2)
        job.wait_for_step(30)
        silent, survivor = job.members()[rank], job.members()[1 - rank]
        threads = job.usage(survivor).threads
        job.cut_off(silent)
        job.wait_until(lambda: job.members() == (survivor,), timeout=20)
        job.wait_for_step(job.step() + 5)
        assert job.usage(survivor).threads <= threads  # none waits for that machine
        _finish(job, tmp_path)
        assert_as_if_undisturbed(tmp_path, allow_lost_counts=audited.BATCH)


@pytest.mark.long
def test_a_frozen_worker_is_replaced_and_a_slow_one_is_not(tmp_path: Path) -> None:
    with LocalJob(_SCRIPT, tmp_path, workers=2, minimum=2, environment={"PAUSE": "1.5"}) as job:
        job.wait_for_workers(2)
        job.wait_for_step(2)
        assert not any(isinstance(m, messages.Lost) for m in job.messages)
        frozen = job.members()[1]
        job.signal(frozen, signal.SIGSTOP)
        job.wait_until(lambda: frozen not in job.members())


def test_a_stopped_job_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    with LocalJob(_SCRIPT, tmp_path, workers=2, minimum=2) as job:
        job.wait_for_workers(2)
        job.wait_for_step(30)
        job.stop()
        assert job.wait_for_end().status == 143
        before = len(epochs(tmp_path))
    (tmp_path / "w1.log").rename(tmp_path / "before.log")
    with LocalJob(_SCRIPT, tmp_path) as job:
        job.wait_for_workers(1)
        _finish(job, tmp_path)
    assert len(epochs(tmp_path)) > before
    assert_as_if_undisturbed(tmp_path)


async def test_by_itself_a_script_takes_a_checkpoint_on_ctrl_c_and_resumes(tmp_path: Path) -> None:
    environment = {**os.environ, "ADAPTDL_CHECKPOINT_PATH": str(tmp_path / "checkpoints")}

    def start(log: str) -> subprocess.Popen[bytes]:
        with (tmp_path / log).open("wb") as output:
            return subprocess.Popen(
                [sys.executable, str(_SCRIPT)], cwd=tmp_path, env=environment, stdout=output
            )

    first = start("first.log")
    try:
        await until(lambda: len(epochs(tmp_path)) >= 1, "an epoch")
        first.send_signal(signal.SIGINT)
        assert first.wait(30) == 143
    finally:
        first.kill()
    (tmp_path / "enough").touch()
    second = start("second.log")
    try:
        assert second.wait(60) == 0
    finally:
        second.kill()
    assert_as_if_undisturbed(tmp_path)


def test_a_script_that_ends_while_a_worker_joins_has_ended(tmp_path: Path) -> None:
    with LocalJob(_SCRIPT, tmp_path) as job:
        job.wait_for_workers(1)
        (tmp_path / "enough").touch()
        job.resize(2)
        assert job.wait_for_end().status == 0, job.describe()
        assert not [record for record in job.records if record.kind == "worker_lost"]
