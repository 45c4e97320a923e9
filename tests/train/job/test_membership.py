"""Growing and shrinking: which workers train in which generation."""

from __future__ import annotations

from shoal.train.messages import Cancel, FormFailed, Generation, Prepared, UsesLibrary
from tests.train.job.simulated_job import SimulatedJob


def test_one_worker_trains_in_the_first_generation() -> None:
    job = SimulatedJob(1).start()
    assert (job.generation, job.members) == (1, ["w1"])
    first = job.workers["w1"].announced[1]
    assert first.joiners == ("w1",)
    assert not first.recover


def test_further_workers_are_started_only_when_the_script_uses_the_library() -> None:
    job = SimulatedJob(4, uses_library=False).start()
    assert list(job.workers) == ["w1"]
    job.say(UsesLibrary("w1"))
    assert list(job.workers) == ["w1", "w2", "w3", "w4"]


def test_a_minimum_of_workers_starts_together() -> None:
    job = SimulatedJob(3, min_workers=2, nodes=1).start()
    assert job.generation == 0
    job.add_node("late")
    assert job.members == ["w1", "w2"]
    assert job.generation == 1


def test_training_starts_with_fewer_than_the_minimum_after_the_rescale_timeout() -> None:
    job = SimulatedJob(3, min_workers=2, nodes=1).start()
    job.advance(59)
    assert job.members == []
    job.advance(1)
    assert job.members == ["w1"]
    job.add_node("late")
    assert job.members == ["w1", "w2"]


def test_new_workers_join_behind_the_survivors() -> None:
    job = SimulatedJob(3, nodes=1).start()
    assert job.members == ["w1"]
    job.add_node("n1")
    job.add_node("n2")
    assert job.members == ["w1", "w2", "w3"]
    assert job.workers["w3"].announced[job.generation].joiners == ("w3",)


def test_workers_that_start_together_join_in_one_generation() -> None:
    job = SimulatedJob(4)
    job.prepares = False
    job.start()
    job.prepare("w1")
    for worker in ("w2", "w3", "w4"):
        job.prepare(worker)
    assert job.members == ["w1", "w2", "w3", "w4"]
    assert job.generation == 2


def test_a_generation_waits_until_its_joiners_have_reached_their_first_batch() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    assert job.members == ["w1"]
    assert not [c for c in job.commits("w1") if c.generation == 2]
    job.prepare("w2")
    assert job.members == ["w1", "w2"]


def test_only_members_that_stay_take_part_when_the_job_shrinks() -> None:
    job = SimulatedJob(3).start()
    assert len(job.members) == 3
    job.resize(2)
    assert job.members == ["w1", "w2"]
    assert list(job.workers) == ["w1", "w2"]
    assert job.status() is None


def test_a_worker_that_holds_no_state_is_the_first_to_go() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    job.resize(1)
    assert job.killed == ["w2"]
    assert job.members == ["w1"]
    assert job.got("w1", Cancel)


def test_a_worker_that_others_wait_for_joins_before_the_job_shrinks() -> None:
    job = SimulatedJob(3, nodes=1).start()
    job.prepares = False
    job._perform(
        [*job.membership.placed("w2", "n1", job.now), *job.membership.placed("w3", "n2", job.now)]
    )
    job.resize(2)
    assert job.killed == []
    job.prepare("w2")
    job.prepare("w3")
    assert job.members == ["w1", "w2"]
    assert list(job.workers) == ["w1", "w2"]


def test_a_job_can_grow_again_after_it_shrank() -> None:
    job = SimulatedJob(2).start()
    job.resize(1)
    assert job.members == ["w1"]
    job.add_node("n9")
    job.resize(2)
    assert job.members == ["w1", "w3"]


def test_workers_that_come_while_a_generation_is_pending_join_the_one_after() -> None:
    job = SimulatedJob(3, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    job.add_node("n2")
    assert job.members == ["w1"]
    assert "w3" in job.workers
    job.prepare("w2")
    assert job.members == ["w1", "w2"]
    job.prepare("w3")
    assert job.members == ["w1", "w2", "w3"]


def test_generation_numbers_only_grow() -> None:
    job = SimulatedJob(3).start()
    job.resize(1)
    job.resize(3)
    job.add_node("n8")
    job.add_node("n9")
    numbers = [m.generation for m in job.got("w1", Generation) if isinstance(m, Generation)]
    assert numbers == sorted(numbers)
    assert job.members[0] == "w1"
    assert len(job.members) == 3


def test_a_generation_that_cannot_be_formed_is_tried_again_under_a_new_number() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    pending = job.membership.state.pending
    assert pending is not None
    number = pending.number
    job.say(FormFailed("w2", number, "connection refused"))
    assert job.membership.state.pending is not None
    assert job.membership.state.pending.number == number + 1
    job.prepare("w2")
    assert job.members == ["w1", "w2"]


def test_joiners_that_cannot_be_reached_are_replaced_and_training_goes_on() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    for _ in range(5):
        assert job.membership.state.pending is not None
        job.say(FormFailed("w2", job.membership.state.pending.number, "no route"))
    assert job.killed == ["w2"]
    assert job.members == ["w1"]
    assert job.status() is None


def test_workers_that_cannot_form_their_first_generation_end_the_job() -> None:
    job = SimulatedJob(2, min_workers=2)
    job.prepares = False
    job.start()
    for _ in range(5):
        assert job.membership.state.pending is not None
        job.say(FormFailed("w1", job.membership.state.pending.number, "no route"))
    assert job.status() == 1
    assert "no route" in job.outcome().why


def test_a_member_that_does_not_connect_in_time_counts_as_a_failed_formation() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.workers["w1"].forms = False
    job.add_node("n1")
    before = job.membership.state.number
    job.advance(121)
    assert job.membership.state.number == before + 1


def test_a_slow_beginning_of_a_joiner_has_no_deadline() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    number = job.membership.state.number
    job.advance(3600)
    assert job.membership.state.number == number
    job.say(Prepared("w2"))
    assert job.members == ["w1", "w2"]


def test_a_script_without_the_library_has_no_deadline() -> None:
    job = SimulatedJob(1, uses_library=False)
    job.forms = False
    job.start()
    for _ in range(20):
        job.advance(120)
    assert job.status() is None
    job.exit("w1", 0)
    assert job.status() == 0
