"""Real workers that are all started again to change their number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.local_job import LocalJob
from tests.train.scripts import audited, plain_ddp
from tests.train.training_audit import assert_as_if_undisturbed, epochs

pytestmark = pytest.mark.workers


def test_a_script_of_the_library_goes_on_from_the_step_at_which_it_was_ended(
    tmp_path: Path,
) -> None:
    with LocalJob(Path(audited.__file__), tmp_path, restarts=True) as job:
        job.wait_for_workers(1)
        job.wait_for_step(30)
        job.resize(2)
        job.wait_for_workers(2)
        (tmp_path / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
    assert {line["workers"] for line in epochs(tmp_path)} == {1, 2}
    assert_as_if_undisturbed(tmp_path)


def test_a_script_of_torchrun_runs_unmodified_and_survives_a_kill(tmp_path: Path) -> None:
    def starts() -> list[dict[str, Any]]:
        lines = (tmp_path / "w1.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    with LocalJob(Path(plain_ddp.__file__), tmp_path, workers=2, restarts=True) as job:
        job.wait_until(lambda: (tmp_path / "plain.pt").exists())
        job.resize(1)
        job.wait_until(lambda: len(starts()) == 2)
        job.resize(2)
        job.wait_until(lambda: len(starts()) == 3)
        job.wait_until(lambda: len(job.processes()) == 2)
        job.signal(next(worker for worker in job.processes() if worker != "w1"))
        job.wait_until(lambda: len(starts()) == 4)
        (tmp_path / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
    assert [start["workers"] for start in starts()] == [2, 1, 2, 2]
    steps = [start["epoch"] for start in starts()]
    assert steps == sorted(steps)
    assert steps[1] > 0


def test_a_script_that_makes_its_own_group_is_started_again_with_all_workers(
    tmp_path: Path,
) -> None:
    with LocalJob(Path(plain_ddp.__file__), tmp_path, workers=2, detects=True) as job:
        job.wait_until(lambda: len(job.processes()) == 2, timeout=120)
        job.wait_until(lambda: (tmp_path / "w1.log").read_text().count('"workers": 2') == 1)
        (tmp_path / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
        assert any(record.kind == "kind" for record in job.records)


def test_a_script_that_uses_one_worker_says_so(tmp_path: Path) -> None:
    script = tmp_path / "code.py"
    script.write_text("print('trained')")
    with LocalJob(script, tmp_path, workers=3, minimum=3, detects=True) as job:
        assert job.wait_for_end().status == 0, job.describe()
        (note,) = [record.text for record in job.records if record.kind == "note"]
    assert "it runs on one worker" in note
    assert (tmp_path / "w1.log").read_text() == "trained\n"
    assert not (tmp_path / "w2.log").exists()
