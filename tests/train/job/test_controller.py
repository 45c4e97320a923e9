"""The controller and the agents of a job with real processes, but without Ray and torch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.train.job import agent_actor, agent_handles, controller, placements
from shoal.train.job.code_archive import pack
from shoal.train.job.controller import Controller
from shoal.train.job.job_spec import NAMESPACE, JobSpec
from shoal.train.job.journal import read_journal
from shoal.train.job.launch import read_status
from tests.polling import alive, cancel_and_wait, until
from tests.train.job.local_ray import LocalPlacements, LocalRay

A, B, C = "a" * 56, "b" * 56, "c" * 56  # ids of nodes
STAND_IN = Path(__file__).with_name("stand_in_worker.py")


class Cluster:
    """Nodes, and one job on them."""

    def __init__(self, directory: Path, ray: LocalRay, nodes: LocalPlacements) -> None:
        self.directory = directory
        self.ray = ray
        self.nodes = nodes
        self.spec = JobSpec("job-1", "code.py")

    async def start(self, script: str, workers: int = 1, **options: Any) -> None:
        code = self.directory / "project"
        code.mkdir()
        (code / "code.py").write_text(script)
        self.spec = JobSpec(
            "job-1", "code.py", max_workers=workers, directory=str(self.directory / "jobs"),
            created=1.0, **options,
        )  # fmt: skip
        await self.start_controller().begin.remote(pack(code))

    def start_controller(self) -> Any:
        actor = self.ray.remote(Controller).options(name=self.spec.actor_name)
        return actor.remote(self.spec.to_json())

    @property
    def controller(self) -> Any:
        return self.ray.get_actor(self.spec.actor_name, NAMESPACE)

    def crash_controller(self) -> None:
        """As if its process was killed; Ray starts another one."""
        crashed = self.controller
        self.ray.kill(crashed)
        crashed.instance._main.cancel()
        self.start_controller()

    def entries(self, kind: str = "") -> list[dict[str, Any]]:
        entries = read_journal(self.spec.path / "journal.jsonl")
        return [e for e in entries if not kind or e["kind"] == kind]

    def members(self) -> list[str]:
        generations = self.entries("generation")
        return list(generations[-1]["members"]) if generations else []

    async def await_members(self, *members: str) -> None:
        await until(lambda: self.members() == list(members), f"{members} train", timeout=30)

    async def await_end(self) -> dict[str, Any]:
        await until(lambda: read_status(self.spec.path), "the job ended", timeout=30)
        status = read_status(self.spec.path)
        assert status is not None
        return status

    def runs(self, worker: str) -> bool:
        try:
            return bool(self.pid(worker))
        except AssertionError:
            return False

    def pid(self, worker: str) -> int:
        for handle in self.ray.actors.values():
            if handle.is_alive and isinstance(handle.instance, agent_actor.AgentActor):
                agent = handle.instance._agent
                if agent is not None and worker in agent._workers:
                    return agent._workers[worker].process.pid
        raise AssertionError(f"{worker} does not run")


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    ray = LocalRay()
    nodes = LocalPlacements({A: 2, B: 2})
    monkeypatch.setattr(controller, "ray", ray)
    monkeypatch.setattr(agent_actor, "ray", ray)
    monkeypatch.setattr(agent_handles, "ray", ray)
    monkeypatch.setattr(placements, "Placements", lambda spec: nodes)
    monkeypatch.setattr(placements, "draining_nodes", lambda: dict(nodes.draining))

    def stand_in(spec: JobSpec) -> list[str]:
        return [sys.executable, str(STAND_IN), spec.script]

    async def end(self: agent_actor.AgentActor, why: str) -> None:
        await self.close()  # its process would exit, which is the one of these tests

    monkeypatch.setattr(agent_actor, "worker_command", stand_in)
    monkeypatch.setattr(agent_actor.AgentActor, "_end", end)
    cluster = Cluster(tmp_path, ray, nodes)
    yield cluster
    for handle in ray.actors.values():
        if isinstance(handle.instance, agent_actor.AgentActor):
            await handle.instance.close()
        elif handle.instance._main is not None:
            handle.instance._main.cancel()
    await cancel_and_wait(asyncio.all_tasks() - {asyncio.current_task()})


async def test_a_job_runs_to_its_end_and_releases_everything(cluster: Cluster) -> None:
    await cluster.start("SECONDS = 0.5; TEXT = 'hello'", workers=3)
    status = await cluster.await_end()
    assert status["status"] == 0
    assert (cluster.spec.path / "output.log").read_text() == "hello\n"
    assert cluster.entries("progress")
    assert sum(cluster.nodes.nodes.values()) == 4
    assert not [a for a in cluster.ray.actors.values() if a.is_alive and "agent" in a.name]


async def test_a_follower_sees_output_and_end(cluster: Cluster) -> None:
    await cluster.start("LIBRARY = False; TEXT = 'hello'; STATUS = 3")
    after = 0
    entries: list[dict[str, Any]] = []
    while not entries or entries[-1]["kind"] != "end":
        after, more = await cluster.controller.follow.remote(after, 5)
        entries += more
    await cluster.controller.acknowledge.remote()
    assert [e["lines"] for e in entries if e["kind"] == "output"] == [["hello"]]
    assert entries[-1]["status"] == 3
    await until(lambda: not cluster.ray.actors[cluster.spec.actor_name].is_alive, "it is gone")


async def test_a_killed_worker_is_replaced(cluster: Cluster) -> None:
    await cluster.start("SECONDS = 600", workers=2)
    await cluster.await_members("w1", "w2")
    os.kill(cluster.pid("w1"), signal.SIGKILL)
    await cluster.await_members("w2", "w3")
    assert "w1 was killed by SIGKILL" in [e["text"] for e in cluster.entries("worker_lost")]


async def test_workers_are_added_and_removed_on_request(cluster: Cluster) -> None:
    await cluster.start("SECONDS = 600", workers=1)
    await cluster.await_members("w1")
    await cluster.controller.resize.remote(3)
    await until(lambda: len(cluster.members()) == 3, "3 workers")
    await cluster.controller.resize.remote(2)
    await cluster.await_members("w1", "w2")


async def test_a_restarted_controller_finds_the_workers_where_they_are(cluster: Cluster) -> None:
    await cluster.start("SECONDS = 600", workers=2)
    await cluster.await_members("w1", "w2")
    pids = [cluster.pid("w1"), cluster.pid("w2")]
    cluster.crash_controller()
    await until(lambda: cluster.entries("restored"), "the controller is back")
    before = len(cluster.entries("progress"))
    await until(lambda: len(cluster.entries("progress")) > before, "training goes on")
    assert [cluster.pid("w1"), cluster.pid("w2")] == pids
    os.kill(pids[1], signal.SIGKILL)  # and it still does its work
    await cluster.await_members("w1", "w3")


async def test_a_worker_that_dies_with_the_controller_is_noticed(cluster: Cluster) -> None:
    await cluster.start("SECONDS = 600", workers=2)
    await cluster.await_members("w1", "w2")
    cluster.ray.kill(cluster.controller)
    cluster.ray.actors[cluster.spec.actor_name].instance._main.cancel()
    os.kill(cluster.pid("w2"), signal.SIGKILL)
    cluster.start_controller()
    await cluster.await_members("w1", "w3")


async def test_a_script_that_ends_while_the_controller_is_away_is_not_run_again(
    cluster: Cluster,
) -> None:
    await cluster.start("SECONDS = 600")
    await cluster.await_members("w1")
    cluster.ray.kill(cluster.controller)
    cluster.ray.actors[cluster.spec.actor_name].instance._main.cancel()
    os.kill(cluster.pid("w1"), signal.SIGUSR1)  # the stand-in then exits with 0
    await until(lambda: not cluster.runs("w1"), "w1 has ended")
    cluster.start_controller()
    assert (await cluster.await_end())["status"] == 0
    assert not cluster.entries("all_lost")


async def test_a_controller_that_is_restarted_at_the_end_of_its_job_ends_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(self: Controller, finish: object) -> None:
        raise RuntimeError("crashed")

    with monkeypatch.context() as crashing:
        crashing.setattr(Controller, "_end", crash)
        await cluster.start("LIBRARY = False; STATUS = 3")
        await until(lambda: cluster.entries("finishing"), "it ends")
    cluster.crash_controller()
    await cluster.controller.follow.remote(0, 1)
    assert (await cluster.await_end())["status"] == 3
    assert len(cluster.entries("request")) == 1


async def test_a_node_whose_agent_is_silent_is_lost(cluster: Cluster) -> None:
    cluster.nodes.nodes = {A: 1, B: 1, C: 1}
    await cluster.start("SECONDS = 600", workers=2)
    await cluster.await_members("w1", "w2")
    (agent,) = [a for a in cluster.ray.actors.values() if B in a.name]
    cluster.nodes.nodes[B] = -9  # nothing is placed there again
    for task in agent.instance._tasks:
        task.cancel()  # no heartbeat and no message any more, as if its link was cut
    await cluster.await_members("w1", "w3")
    assert cluster.entries("node_lost")


async def test_a_lost_node_is_noticed_while_ray_does_not_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.nodes.nodes = {A: 1, B: 1}
    await cluster.start("SECONDS = 600", workers=2)
    await cluster.await_members("w1", "w2")
    (agent,) = [a for a in cluster.ray.actors.values() if B in a.name]
    answer = threading.Event()

    def hang() -> dict[str, float]:
        answer.wait(60)
        return {}

    with monkeypatch.context() as outage:
        outage.setattr(placements, "draining_nodes", hang)
        for task in agent.instance._tasks:
            task.cancel()
        await cluster.await_members("w1")
        heartbeat = cluster.spec.path / "heartbeat"
        heartbeat.unlink()
        await until(heartbeat.exists, "the job counts as running")
        answer.set()
    assert cluster.entries("node_lost")


async def test_a_worker_whose_shared_files_cannot_be_copied_is_started_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    async def lost_with_its_node(self: agent_actor.AgentActor) -> bytes:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("the node is gone")
        return b""

    monkeypatch.setattr(agent_actor.AgentActor, "shared_files", lost_with_its_node)
    cluster.nodes.nodes = {A: 1, B: 1, C: 1}
    await cluster.start("SECONDS = 600", workers=2)
    await until(lambda: len(cluster.members()) == 2, "a second worker trains", timeout=60)
    assert "w2" not in cluster.members()
    assert len(calls) == 2


async def test_an_agent_that_was_given_up_ends_its_workers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    async def end(self: agent_actor.AgentActor, why: str) -> None:
        ended.append(why)
        await self.close()

    monkeypatch.setattr(agent_actor.AgentActor, "_end", end)
    await cluster.start("SECONDS = 600")
    await cluster.await_members("w1")
    pid = cluster.pid("w1")
    (agent,) = [a for a in cluster.ray.actors.values() if "agent" in a.name]
    cluster.controller.instance._agents._given_up.add(agent.instance._id)
    cluster.controller.instance._agents.by_node.clear()
    await until(lambda: ended and not alive(pid), "its worker is gone")


async def test_a_notice_brings_a_checkpoint_and_a_replacement(cluster: Cluster) -> None:
    cluster.nodes.nodes = {A: 1, B: 1}
    await cluster.start("SECONDS = 600", workers=1)
    await cluster.await_members("w1")
    cluster.nodes.draining[A] = time.time() + 120
    await until(lambda: cluster.entries("checkpoint"), "a checkpoint")
    await cluster.await_members("w2")
    assert cluster.entries("notice")


async def test_training_goes_on_while_the_gcs_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start("SECONDS = 600", workers=1)
    await cluster.await_members("w1")

    def fail(*arguments: object) -> None:
        raise RuntimeError("the GCS does not answer")

    with monkeypatch.context() as outage:
        outage.setattr(placements, "draining_nodes", fail)
        outage.setattr(cluster.nodes, "newly_placed", fail)
        before = len(cluster.entries("progress"))
        await until(lambda: len(cluster.entries("progress")) > before + 3, "training goes on")
    os.kill(cluster.pid("w1"), signal.SIGKILL)
    await cluster.await_members("w2")


@pytest.mark.parametrize(
    ("script", "status", "what"),
    [
        ("STATUS = -9", 137, "a worker was killed 3 times at step 0: out of memory"),
        ("STATUS = -11", 139, "a worker crashed 3 times at step 0"),
    ],
)
async def test_a_script_that_is_killed_again_and_again_ends_with_one_message(
    cluster: Cluster, script: str, status: int, what: str
) -> None:
    await cluster.start(f"LIBRARY = False; TEXT = 'last words'; {script}")
    ended = await cluster.await_end()
    assert (ended["status"], ended["what"]) == (status, what)
    last = cluster.entries("worker_exit")[-1]
    assert ended["time"] - last["time"] < 2


async def test_stopping_a_job_ends_it_with_143(cluster: Cluster) -> None:
    await cluster.start("SECONDS = 600", workers=2)
    await cluster.await_members("w1", "w2")
    await cluster.controller.stop.remote()
    assert (await cluster.await_end())["status"] == 143


async def test_the_files_of_the_script_are_collected(cluster: Cluster) -> None:
    script = "open('model.pt', 'w').write('trained'); LIBRARY = False"
    await cluster.start(script, collects_output=True)
    assert (await cluster.await_end())["status"] == 0
    with zipfile.ZipFile(cluster.spec.path / "output.zip") as files:
        assert files.namelist() == ["model.pt"]


async def _resume(cluster: Cluster, script: str) -> None:
    """Run a job that has ended again, with another script."""
    await cluster.controller.acknowledge.remote()
    ended = cluster.ray.actors[cluster.spec.actor_name]
    await until(lambda: not ended.is_alive, "it is gone")
    ended.instance._main.cancel()  # its process would have ended
    cluster.spec = replace(cluster.spec, created=2.0, resumes=True)
    (cluster.directory / "project" / "code.py").write_text(script)
    await cluster.start_controller().begin.remote(pack(cluster.directory / "project"))
    await until(lambda: read_status(cluster.spec.path), "it ended again", timeout=30)


async def test_a_resumed_job_runs_again(cluster: Cluster) -> None:
    await cluster.start("LIBRARY = False; STATUS = 3")
    assert (await cluster.await_end())["status"] == 3
    await _resume(cluster, "LIBRARY = False")
    assert (await cluster.await_end())["status"] == 0


@pytest.mark.parametrize(("directory", "node"), [("/checkpoints", B), ("s3://bucket", A)])
async def test_a_resumed_job_begins_on_the_node_with_its_checkpoint(
    cluster: Cluster, directory: str, node: str
) -> None:
    await cluster.start("LIBRARY = False", checkpoint_dir=directory)
    assert (await cluster.await_end())["status"] == 0
    assert [e["node"] for e in cluster.entries("agent")] == [A]
    with (cluster.spec.path / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"kind": "checkpoint", "host": B}) + "\n")
    await _resume(cluster, "LIBRARY = False")
    assert [e["node"] for e in cluster.entries("agent")] == [node]
