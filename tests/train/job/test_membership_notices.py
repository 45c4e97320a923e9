"""Nodes that announce their end: checkpoint and replacement at once, leave in time."""

from __future__ import annotations

from tests.train.job.simulated_job import SimulatedJob


def test_a_notice_requests_a_replacement_and_a_checkpoint_at_once() -> None:
    job = SimulatedJob(2).start()
    job.drain("n1")
    assert job.requested == ["w3"]
    assert job.checkpoints("w1") == 1
    assert job.members == ["w1", "w2"]  # the node is used until it is replaced


def test_the_replacement_takes_the_place_of_the_worker_that_leaves() -> None:
    job = SimulatedJob(2).start()
    job.drain("n1")
    job.add_node("new")
    assert job.members == ["w1", "w3"]
    assert "w2" not in job.workers
    assert job.status() is None


def test_a_worker_leaves_30_s_before_its_deadline_without_a_replacement() -> None:
    job = SimulatedJob(2).start()
    job.drain("n1", deadline_in=120)
    job.advance(89)
    assert job.members == ["w1", "w2"]
    job.advance(1)
    assert job.members == ["w1"]
    job.add_node("new")
    assert job.members == ["w1", "w3"]


def test_most_of_a_short_notice_is_used() -> None:
    """Google's, for example."""
    job = SimulatedJob(2).start()
    job.drain("n1", deadline_in=28)
    job.advance(20)
    assert job.members == ["w1", "w2"]
    job.advance(1)
    assert job.members == ["w1"]


def test_rank_0_can_leave_too() -> None:
    job = SimulatedJob(3).start()
    job.drain("n0")
    job.advance(90)
    assert job.members == ["w2", "w3"]


def test_a_notice_repeated_is_one_notice() -> None:
    job = SimulatedJob(2).start()
    job.drain("n1")
    job.drain("n1")
    assert job.checkpoints("w1") == 1
    assert job.requested == ["w3"]


def test_a_notice_during_a_rescale_does_not_wait_for_a_slow_joiner() -> None:
    job = SimulatedJob(3, nodes=2).start()
    job.prepares = False
    job.add_node("n2")  # w3 takes long to prepare
    job.drain("n1")
    job.advance(90)
    assert job.members == ["w1"]
    job.prepare("w3")
    assert job.members == ["w1", "w3"]


def test_a_notice_for_the_node_of_a_joiner_ends_the_joiner() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    job.drain("n1")
    assert job.killed == ["w2"]
    assert job.requested == ["w3"]
    assert job.members == ["w1"]


def test_a_notice_for_all_lets_them_train_on_after_a_checkpoint() -> None:
    job = SimulatedJob(2).start()
    job.drain("n0")
    job.drain("n1")
    assert job.checkpoints("w1") == 2
    job.advance(90)
    assert job.members == ["w1", "w2"]
    assert job.checkpoints("w1") == 3
    job.advance(1)
    assert job.checkpoints("w1") == 3
    job.lose_node("n0")
    job.lose_node("n1")
    job.add_node("n8")
    job.add_node("n9")
    assert job.members == ["w3", "w4"]


def test_with_two_notices_and_one_replacement_the_later_deadline_trains_on() -> None:
    job = SimulatedJob(3).start()
    job.drain("n0", deadline_in=120)
    job.drain("n1", deadline_in=200)
    job.add_node("new")
    assert job.members == ["w2", "w3", "w4"]


def test_a_replacement_that_comes_when_all_nodes_are_due_takes_over_the_state() -> None:
    job = SimulatedJob(1).start()
    job.drain("n0", deadline_in=20)
    assert job.members == ["w1"]
    job.add_node("new")
    assert job.members[-1] == "w2"
    assert job.members == ["w2"]
