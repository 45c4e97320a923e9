from __future__ import annotations

from shoal.train.job.waiting_notes import WaitingNotes
from tests.train.job.simulated_job import SimulatedJob


def test_a_job_without_a_node_says_once_what_it_waits_for() -> None:
    job = SimulatedJob(2, nodes=0).start()
    notes = WaitingNotes({"CPU": 2.0, "GPU": 0.5}, job.now)
    assert notes.check(job.membership.state, job.now + 5) == []
    (note,) = notes.check(job.membership.state, job.now + 11)
    assert "2 CPU, 0.5 GPU" in note
    assert notes.check(job.membership.state, job.now + 100) == []


def test_a_job_that_trains_says_nothing_of_workers_that_are_missing() -> None:
    job = SimulatedJob(2, nodes=1).start()
    notes = WaitingNotes({"CPU": 1.0}, job.now)
    assert notes.check(job.membership.state, job.now + 100) == []


def test_a_joiner_that_prepares_for_minutes_is_named() -> None:
    job = SimulatedJob(2, nodes=1).start()
    job.prepares = False
    job.add_node("n1")
    notes = WaitingNotes({"CPU": 1.0}, job.now)
    (note,) = notes.check(job.membership.state, job.now + 121)
    assert note.startswith("w2 ")


def test_a_job_that_makes_no_step_is_named_each_time() -> None:
    job = SimulatedJob(1).start()
    notes = WaitingNotes({"CPU": 1.0}, job.now)
    assert notes.check(job.membership.state, job.now + 299) == []
    assert len(notes.check(job.membership.state, job.now + 301)) == 1
    assert notes.check(job.membership.state, job.now + 400) == []
    notes.stepped(job.now + 400)
    assert notes.check(job.membership.state, job.now + 600) == []
    assert len(notes.check(job.membership.state, job.now + 701)) == 1
