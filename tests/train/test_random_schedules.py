"""Real workers under random schedules: every pass uses each sample once, and nothing stalls."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.train.local_job import LocalJob
from tests.train.scripts import audited
from tests.train.training_audit import assert_as_if_undisturbed

pytestmark = pytest.mark.workers

_SCRIPT = Path(audited.__file__)
_EVENTS = 5
_MOST_WORKERS = 3
_QUICK = {1}
# No step may take longer than that, whatever happens.
_STALL_S = 30.0


class Schedule:
    """Random events on a job. Each is followed by some steps, or at once by the next."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.directory = directory
        self.losses = 0
        self.environment = {
            "LOADER_PROCESSES": str(self.chance.choice([0, 0, 0, 2])),
            "MICRO_BATCHES": str(self.chance.choice([1, 2])),
            "PAUSE": "0.005",
        }

    @contextmanager
    def job(self) -> Iterator[LocalJob]:
        first = self.chance.choice([1, 2])
        with LocalJob(
            _SCRIPT, self.directory, workers=first, minimum=first, environment=self.environment
        ) as job:
            yield job

    def run(self) -> None:
        with self.job() as job:
            job.wait_for_step(1)
            for _ in range(_EVENTS):
                self.event(job)
                if self.chance.random() < 0.7:
                    job.wait_for_step(job.step() + self.chance.randint(1, 20), _STALL_S)
            job.wait_for_step(job.step() + 5, _STALL_S)
            (self.directory / "enough").touch()
            assert job.wait_for_end().status == 0, job.describe()
            restarts = [r for r in job.records if r.kind == "all_lost"]
        if not restarts:
            assert_as_if_undisturbed(self.directory, allow_lost_counts=audited.BATCH * self.losses)

    def event(self, job: LocalJob) -> None:
        what = self.chance.choice(["resize", "resize", "kill", "freeze", "cut"])
        members = job.members()
        if what == "resize":
            job.resize(self.chance.randint(1, _MOST_WORKERS))
        elif len(members) > 1:  # a job that loses all workers starts again from a checkpoint
            victim = self.chance.choice(members)
            self.losses += 1
            if what == "cut":
                job.cut_off(victim)
            else:
                number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
                job.signal_if_alive(victim, number)
            job.wait_until(lambda: victim not in job.members() or _is_over(job), _STALL_S)


def _is_over(job: LocalJob) -> bool:
    return job.finish is not None


@pytest.mark.parametrize("seed", sorted(_QUICK))
def test_a_random_schedule_leaves_no_trace_in_the_training(seed: int, tmp_path: Path) -> None:
    Schedule(seed, tmp_path).run()


@pytest.mark.long
@pytest.mark.parametrize("seed", [seed for seed in range(100) if seed not in _QUICK])
def test_any_random_schedule_leaves_no_trace_in_the_training(seed: int, tmp_path: Path) -> None:
    Schedule(seed, tmp_path).run()
