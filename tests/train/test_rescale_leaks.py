"""A worker that lives through many rescales keeps nothing of the earlier generations and epochs."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from shoal.train import checkpoint
from shoal.train.worker.collective_log import CollectiveLog
from shoal.train.worker.epoch_history import EpochHistory
from tests.train.local_job import LocalJob, Usage
from tests.train.reformed_job import ReformedJob
from tests.train.scripts import audited

_SCRIPT = Path(audited.__file__)
_QUICK_STEPS = {"PAUSE": "0.002"}
_MB = 2**20


def _assert_no_growth(before: Usage, after: Usage, megabytes: int) -> None:
    # A group that is being closed may still have its thread and its connections.
    assert after.threads <= before.threads + 6
    assert after.descriptors <= before.descriptors + 8
    assert after.memory - before.memory < megabytes * _MB


@pytest.mark.workers
def test_rescales_leave_no_thread_descriptor_or_memory_behind(tmp_path: Path) -> None:
    job = ReformedJob(tmp_path, ("w1", "w2"))
    with job.run(_SCRIPT, _QUICK_STEPS):
        # The allocator's memory grows in the first rescales, and that of the epochs that are kept
        # in the first 32 epochs: some 5 and 3 MB.
        for _ in range(50):
            job.reform()
        before = job.usage("w1")
        for _ in range(50):
            job.reform()
        _assert_no_growth(before, job.usage("w1"), megabytes=6)


@pytest.mark.long
@pytest.mark.workers
def test_two_hundred_joins_and_departures_leave_nothing_behind(tmp_path: Path) -> None:
    with LocalJob(_SCRIPT, tmp_path, environment=_QUICK_STEPS) as job:
        job.wait_for_workers(1)
        before = None
        for count in range(105):
            job.resize(2)
            job.wait_for_workers(2, timeout=180)
            job.resize(1)
            job.wait_for_workers(1, timeout=180)
            if count == 24:
                before = job.usage("w1")
        assert before is not None
        _assert_no_growth(before, job.usage("w1"), megabytes=5)


class _Owner:
    pass


def test_results_are_kept_from_the_epoch_in_which_a_joiner_may_begin() -> None:
    history = EpochHistory()
    assert history.first_kept(100) == 68
    history.generation_announced(60)
    history.generation_announced(90)  # joiners of the first announcement may still wait
    assert history.first_kept(100) == 60
    history.generation_begun()
    assert history.first_kept(100) == 68


def test_a_state_of_a_finished_epoch_lives_as_long_as_the_script_holds_its_owner() -> None:
    history, held, dropped = EpochHistory(), _Owner(), _Owner()
    for name, owner in (("held", held), ("dropped", dropped)):
        checkpoint.State(name)
        history.created(name, 3, owner)
    try:
        del dropped, owner
        gc.collect()
        assert history.forget_before(3) == []
        assert history.forget_before(4) == ["dropped"]
        assert checkpoint.find_state("held") is not None
        assert checkpoint.find_state("dropped") is None
    finally:
        for name in ("held", "dropped"):
            checkpoint.unregister(name)


def test_the_log_of_collectives_forgets_epochs_but_not_what_is_outside_of_them() -> None:
    log = CollectiveLog()
    for epoch in (None, 1, 2, 3):
        log.add(epoch, epoch)
    log.forget_before(3)
    assert log.results == {None: [None], 3: [3]}
