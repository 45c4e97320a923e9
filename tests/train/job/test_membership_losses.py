"""Workers, nodes and controllers that are lost, and scripts that end."""

from __future__ import annotations

import pytest

from shoal.train.messages import Checkpointed, Generation, Lost, Progress, UsesLibrary
from tests.train.job.simulated_job import SimulatedJob


def progress(job: SimulatedJob, step: int) -> None:
    job.step = step
    job.say(Progress(job.members[0], 0, step, 0, 0, "train", 32, 32, 1.0, job.generation))


def last_generation(job: SimulatedJob, worker: str) -> Generation:
    announced = job.workers[worker].announced
    return announced[max(announced)]


def test_a_killed_member_is_replaced_after_the_survivors_recovered() -> None:
    job = SimulatedJob(3, nodes=3).start()
    generation = job.generation
    job.kill("w2")
    assert job.members == ["w1", "w3"]
    assert last_generation(job, "w1").recover
    assert job.aborted("w1")
    assert job.aborted("w3")
    assert job.generation == generation + 1
    job.add_node("n9")
    assert job.members == ["w1", "w3", "w4"]
    assert not last_generation(job, "w1").recover


def test_the_next_survivor_becomes_rank_0_when_rank_0_dies() -> None:
    job = SimulatedJob(3).start()
    job.kill("w1")
    assert job.members == ["w2", "w3"]


def test_two_members_that_die_at_once_leave_the_third_training() -> None:
    job = SimulatedJob(3).start()
    job.kill("w1", "w3")
    assert job.members == ["w2"]
    assert job.status() is None


def test_all_workers_lost_start_again_from_the_checkpoint_as_joiners() -> None:
    job = SimulatedJob(2).start()
    job.say(Checkpointed("w1", 10, "/ckpt/10", 1, 0.1))
    job.kill("w1", "w2")
    assert job.members == []
    text = next(r.text for r in job.records if r.kind == "all_lost")
    assert "/ckpt/10" in text
    job.add_node("n8")
    job.add_node("n9")
    assert job.members == ["w3", "w4"]
    assert last_generation(job, "w3").generation > 2
    assert not last_generation(job, "w4").recover


def test_a_joiner_that_dies_before_it_formed_costs_the_survivors_nothing() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    generation = job.generation
    job.kill("w2")
    assert job.generation == generation
    assert not job.aborted("w1")
    assert job.membership.state.pending is None
    job.prepares = True
    job.add_node("n2")
    assert job.members == ["w1", "w3"]


def test_joiners_that_began_with_one_that_died_are_started_again() -> None:
    job = SimulatedJob(3, nodes=1).start()
    job.prepares = False
    state = job.membership.state
    # Both are placed before either connects, so both join in one generation.
    actions = [
        *job.membership.placed("w2", "n1", job.now),
        *job.membership.placed("w3", "n2", job.now),
    ]
    job._perform(actions)
    assert state.pending is not None
    assert state.pending.announcement.joiners == ("w2", "w3")
    job.kill("w2")
    assert job.killed == ["w3"]
    assert job.members == ["w1"]


def test_a_joiner_that_has_reached_its_first_batch_survives_its_companion() -> None:
    job = SimulatedJob(3, nodes=1).start()
    job.prepares = False
    job._perform(
        [*job.membership.placed("w2", "n1", job.now), *job.membership.placed("w3", "n2", job.now)]
    )
    job.prepare("w3")
    job.kill("w2")
    assert job.killed == []
    assert job.members == ["w1", "w3"]


def test_a_joiner_that_dies_after_the_commit_breaks_the_generation_for_its_members() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.workers["w1"].switches = False
    job.add_node("n1")
    assert job.commits("w1")[-1].generation == 2
    job.kill("w2")
    assert last_generation(job, "w1").recover
    job.let_switch("w1")
    assert job.members == ["w1"]


def test_a_survivor_that_dies_during_the_switch_leaves_the_joiner_a_joiner() -> None:
    job = SimulatedJob(3, nodes=2).start()
    for worker in job.workers.values():
        worker.switches = False
    job.prepares = False
    job.add_node("n2")
    job.workers["w3"].switches = False
    job.prepare("w3")
    job.kill("w1")
    announced = last_generation(job, "w2")
    assert announced.members == ("w2", "w3")
    assert announced.joiners == ("w3",)
    assert announced.recover


def test_the_only_holder_of_the_state_dies_during_the_switch() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.workers["w1"].switches = False
    job.prepares = False
    job.add_node("n1")
    job.workers["w2"].switches = False
    job.prepare("w2")
    job.kill("w1")
    assert "all_lost" in job.kinds()
    announced = last_generation(job, "w2")
    assert announced.members == announced.joiners == ("w2",)
    assert not announced.recover


def test_a_member_that_dies_while_a_generation_is_pending_cancels_it() -> None:
    job = SimulatedJob(3, nodes=2).start()
    job.prepares = False
    job.add_node("n2")
    job.kill("w2")
    assert job.members == ["w1"]
    assert job.membership.state.pending is not None  # w3 is a joiner of the generation after
    assert job.membership.state.pending.announcement.joiners == ("w3",)
    job.prepare("w3")
    assert job.members == ["w1", "w3"]


def test_a_lost_node_takes_all_its_workers() -> None:
    job = SimulatedJob(3, nodes=0)
    job.nodes.extend(["a", "b", "b"])
    job.start()
    assert len(job.members) == 3
    job.lose_node("b")
    assert job.members == ["w1"]
    assert job.aborted("w1")
    assert any(r.kind == "node_lost" and "w2, w3" in r.text for r in job.records)


def test_a_failed_collective_without_a_lost_worker_is_repaired_after_a_moment() -> None:
    job = SimulatedJob(2).start()
    generation = job.generation
    job.say(Lost("w1", generation, 11, "connection reset"))
    job.advance(0.5)
    assert job.generation == generation
    job.advance(0.6)
    assert job.generation == generation + 1
    assert job.members == ["w1", "w2"]
    assert last_generation(job, "w1").recover


def test_the_exit_that_explains_a_failed_collective_is_not_repaired_twice() -> None:
    job = SimulatedJob(2).start()
    job.say(Lost("w1", job.generation, 11, "connection reset"))
    job.kill("w2")
    number = job.membership.state.number
    job.advance(2)
    assert job.membership.state.number == number
    assert job.members == ["w1"]


def test_connections_that_break_again_and_again_end_the_job() -> None:
    job = SimulatedJob(2).start()
    for _ in range(5):
        job.say(Lost("w1", job.generation, 0, "connection reset"))
        job.advance(1.1)
    assert job.status() == 1


def test_three_kills_at_one_step_mean_out_of_memory() -> None:
    job = SimulatedJob(1, nodes=3).start()
    for worker in ("w1", "w2", "w3"):
        assert job.status() is None
        job.kill(worker)
        job.advance(60)
    assert job.status() == 137
    assert "out of memory" in job.outcome().what


def test_kills_at_different_steps_are_lost_machines() -> None:
    job = SimulatedJob(1, nodes=9).start()
    for number in range(1, 8):
        progress(job, job.step + 1)
        job.kill(f"w{number}")
        job.advance(60)
    assert job.status() is None


def test_several_kills_at_once_count_as_one() -> None:
    job = SimulatedJob(4, nodes=8).start()
    job.kill("w2", "w3", "w4")
    assert job.status() is None


def test_a_crash_of_the_script_at_one_step_ends_the_job_with_its_signal() -> None:
    job = SimulatedJob(1, nodes=3).start()
    for worker in ("w1", "w2", "w3"):
        job.kill(worker, signal=11)
        job.advance(60)
    assert job.status() == 139
    assert "SIGSEGV" in job.outcome().why


def test_a_frozen_worker_is_never_taken_for_out_of_memory() -> None:
    job = SimulatedJob(1, nodes=9).start()
    for number in range(1, 6):
        job.kill(f"w{number}", frozen=True)
        job.advance(60)
    assert job.status() is None
    assert job.members == ["w6"]


def test_joiners_that_die_are_requested_again_with_growing_pauses() -> None:
    job = SimulatedJob(2, nodes=9).start()
    job.prepares = False
    job.resize(3)
    job.kill("w3")
    assert "w4" in job.workers
    job.kill("w4")
    assert "w5" not in job.workers
    job.advance(1)
    job.kill("w5")
    job.advance(2)
    assert "w6" not in job.workers
    job.advance(1)
    assert "w6" in job.workers
    assert job.members == ["w1", "w2"]


# --- scripts that end ---


def test_the_job_ends_when_the_scripts_of_all_members_ended() -> None:
    job = SimulatedJob(2).start()
    job.exit("w2", 0)
    assert job.status() is None
    job.exit("w1", 0)
    assert job.status() == 0


def test_a_joiner_does_not_keep_a_job_alive_whose_script_ended() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    job.exit("w1", 0)
    assert job.killed == ["w2"]
    assert job.status() == 0


def test_no_worker_is_requested_once_a_script_ended() -> None:
    job = SimulatedJob(3, nodes=2).start()
    job.exit("w2", 0)
    assert job.requested == []
    job.add_node("n9")
    assert job.members == ["w1", "w2"]


def test_a_peer_that_ended_first_does_not_stop_a_worker_that_still_needs_it() -> None:
    job = SimulatedJob(2).start()
    job.exit("w2", 0)
    job.say(Lost("w1", job.generation, 20, "connection closed"))
    assert job.members == ["w1"]
    job.exit("w1", 0)
    assert job.status() == 0


def test_a_worker_that_is_lost_at_the_end_runs_again_from_the_checkpoint() -> None:
    job = SimulatedJob(2).start()
    job.exit("w2", 0)
    job.kill("w1")
    assert job.status() is None
    job.add_node("n8")
    job.add_node("n9")
    assert job.members == ["w3", "w4"]


@pytest.mark.parametrize("code", [1, 2, 137])
def test_a_failing_script_ends_the_job_with_its_status_and_last_lines(code: int) -> None:
    job = SimulatedJob(2).start()
    job.exit("w2", code, "Traceback", "ValueError: x")
    assert job.status() == code
    assert job.outcome().output == ("Traceback", "ValueError: x")
    assert "w2" in job.outcome().why


@pytest.mark.parametrize("code", [0, 1])
def test_a_script_that_never_uses_the_library_ends_with_its_own_status(code: int) -> None:
    job = SimulatedJob(4, uses_library=False).start()
    job.exit("w1", code)
    assert job.status() == code


def test_a_script_without_the_library_that_is_killed_runs_again() -> None:
    job = SimulatedJob(4, uses_library=False).start()
    job.kill("w1")
    job.advance(1)
    assert list(job.workers) == ["w2"]
    job.exit("w2", 0)
    assert job.status() == 0


def test_a_member_of_the_first_generation_that_dies_before_any_batch() -> None:
    job = SimulatedJob(2, min_workers=2, nodes=4)
    job.prepares = False
    job.start()
    job.prepares = True
    job.kill("w1")
    job.advance(60)
    assert job.members == ["w3", "w4"]


def test_one_exits_and_one_is_killed_before_the_first_batch() -> None:
    job = SimulatedJob(2, min_workers=2, nodes=4, uses_library=False).start()
    job.exit("w1", 0)
    assert job.status() is None
    job.kill("w2")
    job.advance(60)
    assert list(job.workers) == ["w3", "w4"]
    job.exit("w3", 0)
    job.exit("w4", 0)
    assert job.status() == 0


# --- stop ---


def test_stopping_lets_the_members_write_a_checkpoint() -> None:
    job = SimulatedJob(2).start()
    job.stop()
    assert job.status() == 143


def test_a_member_that_hangs_is_not_waited_for_longer_than_the_checkpoint_timeout() -> None:
    job = SimulatedJob(1).start()
    job._receive = lambda worker, message: None  # type: ignore[method-assign]
    job.stop()
    job.advance(119)
    assert job.status() is None
    job.advance(1)
    assert job.status() == 143
    assert "120 s" in job.outcome().why


def test_stopping_before_training_began_ends_the_job_at_once() -> None:
    job = SimulatedJob(2, uses_library=False).start()
    job.stop()
    assert job.status() == 143


# --- controller restarts ---


def test_a_restarted_controller_goes_on_with_the_running_generation() -> None:
    job = SimulatedJob(3, nodes=2).start()
    generation = job.generation
    job.restart_controller()
    assert (job.generation, job.members) == (generation, ["w1", "w2"])
    assert job.requested == ["w4"]  # names are not used twice
    job.add_node("n9")
    assert job.members == ["w1", "w2", "w4"]
    assert job.generation == generation + 1


def test_a_restarted_controller_notices_a_member_that_was_lost_meanwhile() -> None:
    job = SimulatedJob(2).start()
    job.restart_controller(lost=("w1",))
    assert job.members == ["w2"]
    assert last_generation(job, "w2").recover


def test_a_restarted_controller_cancels_what_was_not_committed() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    number = job.membership.state.number
    job.workers["w2"].prepares = False
    job.restart_controller()
    assert job.members == ["w1"]
    pending = job.membership.state.pending
    assert pending is not None
    assert pending.number == number + 1
    job.prepare("w2")
    assert job.members == ["w1", "w2"]


def test_a_restarted_controller_completes_a_commit() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.workers["w1"].switches = False
    job.add_node("n1")
    assert job.members == ["w1"]
    job.workers["w1"].switches = True
    job.restart_controller()
    assert job.members == ["w1", "w2"]
    assert job.generation == 2


def test_a_controller_that_is_restarted_without_any_worker_starts_over() -> None:
    job = SimulatedJob(2).start()
    job.restart_controller(lost=("w1", "w2"))
    job.add_node("n8")
    assert job.members == ["w3"]


def test_a_script_that_did_not_use_the_library_is_left_alone_by_a_restarted_controller() -> None:
    job = SimulatedJob(4, uses_library=False).start()
    job.workers["w1"].prepares = False
    job.restart_controller()
    assert list(job.workers) == ["w1"]
    assert job.requested == []
    job.say(UsesLibrary("w1"))
    assert len(job.workers) == 4
