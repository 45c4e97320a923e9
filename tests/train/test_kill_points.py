"""Real workers that end at every point of a step: killed, or on a machine that falls silent; two at
once, and while they join."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.train.local_job import LocalJob
from tests.train.scripts import audited, killed
from tests.train.training_audit import assert_as_if_undisturbed

pytestmark = pytest.mark.workers

_SCRIPT = Path(killed.__file__)
_ROOT = str(Path(__file__).parents[2])
_ENVIRONMENT = {"PYTHONPATH": _ROOT, "PAUSE": "0.005"}
_STEP_POINTS = [f"{when} {p}" for p in killed.STEP_POINTS for when in ("before", "after")]
_SWITCH_POINTS = [f"{when} {p}" for p in killed.SWITCH_POINTS for when in ("before", "after")]


def _run(directory: Path, points: list[str]) -> None:
    """One job of two workers, which loses one at each of these points: rank 0 and 1 in turn."""
    with LocalJob(_SCRIPT, directory, workers=2, minimum=2, environment=_ENVIRONMENT) as job:
        job.wait_for_workers(2)
        for point, rank in zip(points, itertools.cycle([1, 0]), strict=False):
            job.wait_for_step(job.step() + 5)
            victim = job.members()[rank]
            (directory / f"die-{victim}").write_text(point)
            if point in _SWITCH_POINTS:
                job.resize(3)
            job.wait_until(lambda victim=victim: victim not in job.members())  # type: ignore[misc]
            job.resize(2)
            job.wait_for_workers(2)
        (directory / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
        assert not [r for r in job.records if r.kind == "all_lost"]
    assert_as_if_undisturbed(directory, allow_lost_counts=audited.BATCH * len(points))


def _fall_silent(directory: Path, points: list[str]) -> None:
    """As `_run`, with machines that are lost without a word, so that no connection is closed."""
    with LocalJob(_SCRIPT, directory, workers=2, minimum=2, environment=_ENVIRONMENT) as job:
        job.wait_for_workers(2)
        for point, rank in zip(points, itertools.cycle([1, 0]), strict=False):
            job.wait_for_step(job.step() + 5)
            victim = job.members()[rank]
            (directory / f"hang-{victim}").write_text(point)
            if point in _SWITCH_POINTS:
                job.resize(3)
            job.wait_until((directory / f"hangs-{victim}").exists)
            job.cut_off(victim)
            job.wait_until(lambda victim=victim: victim not in job.members(), 20)  # type: ignore[misc]
            job.resize(2)
            job.wait_for_workers(2)
        (directory / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
        assert not [r for r in job.records if r.kind == "all_lost"]
    assert_as_if_undisturbed(directory, allow_lost_counts=audited.BATCH * len(points))


@pytest.mark.long  # test_silent_member.py has the same with one worker
def test_a_machine_that_falls_silent_during_a_switch_costs_no_sample(tmp_path: Path) -> None:
    _fall_silent(tmp_path, ["before sync"])


@pytest.mark.long
@pytest.mark.parametrize("points", [_STEP_POINTS, _SWITCH_POINTS], ids=["step", "switch"])
def test_a_machine_may_fall_silent_at_every_point(tmp_path: Path, points: list[str]) -> None:
    _fall_silent(tmp_path, points)


@pytest.mark.long
def test_a_worker_that_dies_in_a_reduction_costs_no_sample(tmp_path: Path) -> None:
    _run(tmp_path, ["after reduction"])


@pytest.mark.long
@pytest.mark.parametrize("points", [_STEP_POINTS, _SWITCH_POINTS], ids=["step", "switch"])
def test_a_worker_may_die_at_every_point(tmp_path: Path, points: list[str]) -> None:
    _run(tmp_path, points)


@pytest.mark.long
def test_two_of_three_die_at_once_and_a_joiner_while_it_joins(tmp_path: Path) -> None:
    with LocalJob(_SCRIPT, tmp_path, workers=3, minimum=3, environment=_ENVIRONMENT) as job:
        job.wait_for_workers(3)
        survivor, *victims = job.members()
        for victim in victims:
            job.signal(victim)
        job.wait_until(lambda: job.members() == (survivor,))
        job.wait_until(lambda: len(job.processes()) == 3)
        joiner = next(w for w in job.processes() if w not in (survivor, *victims))
        job.signal(joiner)
        job.wait_for_workers(3)
        (tmp_path / "enough").touch()
        assert job.wait_for_end().status == 0, job.describe()
    assert_as_if_undisturbed(tmp_path, allow_lost_counts=2 * audited.BATCH)
