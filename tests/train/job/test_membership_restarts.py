"""Jobs that change the number of workers by a restart of all of them."""

from __future__ import annotations

import random
import signal

import pytest

from shoal.train.messages import Progress
from tests.train.job.simulated_job import SimulatedJob


def _job(workers: int, *, nodes: int | None = None, uses_library: bool = True) -> SimulatedJob:
    job = SimulatedJob(workers, nodes=nodes, uses_library=uses_library, restarts=True)
    job.forms = uses_library
    return job.start()


def test_all_workers_start_together_and_know_rank_0() -> None:
    job = _job(3)
    assert job.members == ["w1", "w2", "w3"]
    first = job.workers["w2"].announced[1]
    assert first.master is not None
    assert first.master.host == job.workers["w1"].node


def test_a_new_worker_ends_the_others_after_a_checkpoint_and_all_start_again() -> None:
    job = _job(2, nodes=1)
    job.advance(5)
    assert job.members == ["w1"]
    job.add_node("n1")
    assert job.members == ["w1", "w2"]
    assert job.signals == []
    assert job.membership.state.restarts == 1


def test_workers_that_are_placed_one_by_one_cost_one_restart() -> None:
    job = _job(4, nodes=1)
    job.advance(5)
    for name in ("n1", "n2"):
        job.add_node(name)
    job.advance(59)
    assert job.members == ["w1"]
    job.advance(1)
    assert job.members == ["w1", "w2", "w3"]
    assert job.membership.state.restarts == 1


def test_fewer_workers_are_a_restart_too_and_the_others_are_released() -> None:
    job = _job(3)
    job.resize(2)
    assert job.members == ["w1", "w2"]
    assert sorted(job.workers) == ["w1", "w2"]


def test_a_lost_worker_ends_the_group_and_its_replacement_starts_with_the_others() -> None:
    job = _job(2)
    job.kill("w1")
    assert ("w2", signal.SIGKILL) in job.signals
    assert job.members == []
    job.add_node("n9")
    assert job.members == ["w2", "w3"]


def test_a_lost_node_is_not_waited_for_longer_than_the_rescale_timeout() -> None:
    job = _job(3)
    job.lose_node("n1")
    assert job.members == []
    job.advance(60)
    assert job.members == ["w1", "w3"]


def test_a_script_without_the_library_is_ended_by_sigterm() -> None:
    job = _job(2, nodes=1, uses_library=False)
    job.advance(5)
    assert list(job.workers) == ["w1"]
    job.add_node("n1")
    assert job.signals == [("w1", signal.SIGTERM)]
    assert list(job.workers) == ["w1", "w2"]
    job.exit("w1", 0)
    job.exit("w2", 0)
    assert job.status() == 0


def test_a_script_that_fails_is_not_started_again() -> None:
    job = _job(2)
    job.exit("w2", 3)
    assert job.status() == 3


def test_a_node_that_goes_away_is_left_when_its_replacement_is_there_or_it_is_due() -> None:
    job = _job(2)
    job.drain("n1", deadline_in=120)
    assert job.checkpoints("w1") == 1
    assert job.members == ["w1", "w2"]
    job.add_node("n9")
    assert job.members == ["w1", "w3"]
    job.drain("n9", deadline_in=50)
    job.advance(21)
    assert job.members == ["w1"]


def test_a_worker_that_does_not_stop_in_time_is_killed() -> None:
    job = _job(2, uses_library=False)
    job.workers["w1"].ignores_sigterm = True
    job.resize(1)
    assert sorted(job.workers) == ["w1"]
    job.advance(121)
    assert ("w1", signal.SIGKILL) in job.signals
    assert job.status() is None
    assert sorted(job.workers) == ["w1"]


def test_a_stop_ends_the_job() -> None:
    job = _job(2)
    job.stop()
    assert job.status() == 143


def test_a_restarted_controller_goes_on_with_the_group() -> None:
    job = _job(2)
    job.restart_controller()
    assert job.members == ["w1", "w2"]
    job.resize(1)
    assert job.members == ["w1"]


@pytest.mark.parametrize("seed", range(100))
def test_after_any_sequence_of_events_all_workers_train(seed: int) -> None:
    chance = random.Random(seed)
    names = iter(range(10, 10_000))
    job = _job(3, nodes=2)
    for _ in range(40):
        job.step += 1
        if job.members and job.members[0] in job.workers:
            job.say(Progress(job.members[0], 0, job.step, 0, 0, "", 1, 1, 1.0, job.generation))
        what = chance.choice(["kill", "lose", "drain", "node", "time", "resize", "controller"])
        worker = chance.choice(list(job.workers)) if job.workers else ""
        if what == "node":
            job.add_node(f"n{next(names)}")
        elif what == "time":
            job.advance(chance.choice([0.1, 6, 30, 70]))
        elif what == "resize":
            job.resize(chance.randint(1, 4))
        elif worker and what == "kill":
            job.kill(worker, frozen=True)
        elif worker and what == "lose":
            job.lose_node(job.workers[worker].node)
        elif worker and what == "drain":
            job.drain(job.workers[worker].node, chance.choice([20, 120]))
        elif worker and what == "controller":
            job.restart_controller()
        assert job.status() is None, job.outcome()
    job.resize(3)
    for _ in range(10):
        if job.requested:
            job.add_node(f"n{next(names)}")
        job.advance(100)
    assert len(job.members) == 3
    assert sorted(job.members) == sorted(job.workers)
