"""Random schedules of everything that can happen: afterwards the job always trains again."""

from __future__ import annotations

import random

import pytest

from shoal.train.messages import FormFailed, Lost, Progress
from tests.train.job.simulated_job import SimulatedJob

EVENTS = [
    *("kill", "kill", "lose", "drain", "node", "node", "time", "time", "resize", "controller"),
    *("prepare", "switch", "hold", "lost", "form"),
]


class Schedule:
    """One random event at a time, on workers that are slow or quick at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.job = SimulatedJob(3, min_workers=self.random.choice([1, 2]), nodes=2).start()
        self.names = iter(range(10, 10_000))

    def event(self) -> None:
        job, random = self.job, self.random
        job.step += 1
        if job.members and job.members[0] in job.workers:
            step, generation = job.step, job.generation
            job.say(Progress(job.members[0], 0, step, 0, 0, "train", 1, 1, 1.0, generation))
        job.prepares = random.random() < 0.7
        workers = list(job.workers)
        what = random.choice(EVENTS)
        if what == "node":
            job.add_node(f"n{next(self.names)}")
        elif what == "time":
            job.advance(random.choice([0.1, 1.5, 30, 70]))
        elif what == "resize":
            job.resize(random.randint(1, 4))
        elif not workers:
            return
        elif what == "kill":
            # Frozen: kills without a step in between would end the job as out of memory.
            victims = random.sample(workers, min(len(workers), random.choice([1, 1, 2])))
            job.kill(*victims, frozen=True)
        elif what == "lose":
            job.lose_node(job.workers[random.choice(workers)].node)
        elif what == "drain":
            job.drain(job.workers[random.choice(workers)].node, random.choice([20, 120]))
        elif what == "controller":
            job.restart_controller(tuple(random.sample(workers, random.choice([0, 0, 1]))))
        else:
            self._message(what, random.choice(workers))

    def _message(self, what: str, name: str) -> None:
        job, worker = self.job, self.job.workers[name]
        pending = job.membership.state.pending
        if what == "prepare":
            worker.prepares = True
            job.prepare(name)
        elif what == "hold":
            worker.switches = False
        elif what == "switch":
            self.release(name)
        elif what == "lost" and worker.generation:
            job.say(Lost(name, worker.generation, job.step, "reset"))
        elif what == "form" and pending and name in pending.members:
            job.say(FormFailed(name, pending.number, "refused"))

    def release(self, name: str) -> None:
        """Let a worker that held back switch to what was committed."""
        worker = self.job.workers[name]
        if worker.switches:
            return
        worker.switches = True
        commits = [c.generation for c in self.job.commits(name)]
        newest = max(commits, default=0)
        is_newer = newest > worker.generation and newest in worker.announced
        if is_newer and max(worker.announced) == newest:
            self.job.let_switch(name)

    def check(self) -> None:
        state = self.job.membership.state
        assert self.job.status() is None, self.job.outcome()
        if state.pending is not None:
            assert all(m in state.workers for m in state.pending.members)
            assert state.pending.number == state.number
            joiners = state.pending.announcement.joiners
            survivors = [m for m in state.pending.members if m not in joiners]
            assert state.pending.members == (*survivors, *joiners)
        if state.running is not None and state.pending is None:
            assert all(m in state.workers for m in state.running.members)


@pytest.mark.parametrize("seed", range(200))
def test_a_job_trains_with_all_its_workers_after_any_sequence_of_events(seed: int) -> None:
    schedule = Schedule(seed)
    job = schedule.job
    for _ in range(40):
        schedule.event()
        schedule.check()
    # Everything is well again: nodes are available, and workers answer.
    job.prepares = True
    job.resize(3)
    for _ in range(6):
        for name in list(job.workers):
            if name in job.workers:
                schedule.release(name)
        for name in list(job.workers):
            if name in job.workers and not job.workers[name].prepares:
                job.workers[name].prepares = True
                job.prepare(name)
        if len(job.requested):
            job.add_node(f"n{next(schedule.names)}")
        job.step += 1
        job.advance(200)
    schedule.check()
    assert len(job.members) == 3
    assert sorted(job.members) == sorted(job.workers)
