"""The history on the head, and how the laptop follows it."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.controller import history as histories
from shoal.controller import status_file, status_stream
from shoal.controller.history import History, Sample, pending_resources
from shoal.controller.interruption import Interruption
from shoal.controller.lifecycle import Node
from shoal.controller.paths import DRAIN_REQUESTS, HISTORY, SAMPLES, STATE
from shoal.controller.state import ControllerState, Decision, NodeUpdated
from shoal.controller.status_file import ControllerStatus
from shoal.controller.status_stream import StatusUpdate, follow_status
from shoal.core.errors import UnreachableError
from shoal.core.node_phase import Phase
from shoal.scaling import Demand, Gang, Request, Shape
from tests.controller.fake_cluster import Harness
from tests.controller.test_client import HEAD, Head
from tests.polling import until

WORKER = Node("i-1", "worker-1", "gpu", "worker", Phase.BOOTING, 10.0, 10.0, why="one task waits")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_node_is_recorded_when_its_phase_changes_and_not_when_its_detail_does(
    tmp_path: Path,
) -> None:
    history, state = History(tmp_path), ControllerState()
    for node in (WORKER, replace(WORKER, detail="SSH answers"), replace(WORKER, phase=Phase.READY)):
        history.record([NodeUpdated(node)], state)
        state.apply(NodeUpdated(node))
    assert [row["phase"] for row in lines(tmp_path / HISTORY)] == ["booting", "ready"]


def test_a_full_file_is_kept_once_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "_HISTORY_BYTES", 400)
    history, state = History(tmp_path), ControllerState()
    for number in range(22):
        history.record([Decision(float(number), "launch", "1 x gpu", "waits")], state)
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert len(sizes) == 2 and sizes[1] < 600


def test_a_sample_is_written_when_it_differs_and_once_a_minute(tmp_path: Path) -> None:
    history = History(tmp_path)
    for at, waiting in [(0, 0), (1, 5), (3, 5), (10, 5), (70, 5)]:
        history.sample(Sample(float(at), waiting=waiting))
    assert [row["at"] for row in lines(tmp_path / SAMPLES)] == [0, 3, 70]


def test_pending_resources_are_those_of_tasks_and_gangs() -> None:
    cpu, gpu = Shape((("CPU", 2.0),)), Shape((("CPU", 1.0), ("GPU", 1.0)))
    demand = Demand(requests=(Request(cpu, 3),), gangs=(Gang((gpu, gpu), count=2),))
    assert pending_resources(demand) == {"CPU": 10.0, "GPU": 4.0}


async def test_a_requested_drain_lets_the_work_finish_and_ends_the_node(harness: Harness) -> None:
    harness.cluster.set_pending_tasks(1)
    await harness.iterate(2)
    harness.cluster.set_pending_tasks(0)
    (worker,) = harness.cluster.workers
    harness.cluster.busy = {worker}
    await harness.iterate()
    requests = harness.directory / DRAIN_REQUESTS
    requests.mkdir()
    (requests / worker).touch()
    (requests / "i-unknown").touch()
    await harness.iterate(2)
    assert harness.state.nodes[worker].phase is Phase.DRAINING
    assert harness.state.nodes[worker].ended == "a user requested that the node is drained"
    assert list(requests.iterdir()) == []
    assert not harness.controller.on_interruption("i-unknown", Interruption("drain"))
    harness.cluster.busy = set()
    await harness.iterate(3)
    assert worker not in harness.cluster.instances


class Follower:
    """A head with a controller's files, and what following it has reported."""

    def __init__(self, home: Path) -> None:
        self.head = Head(home)
        self.directory = home / ".shoal/controller"
        self.updates: list[StatusUpdate] = []

    def publish(self, **values: object) -> None:
        status = ControllerStatus(time.time(), 1, "c")
        status_file.write(self.directory, replace(status, **values))  # type: ignore[arg-type]

    def append(self, name: str, text: str) -> None:
        with (self.directory / name).open("a") as file:
            file.write(text + "\n")

    def history(self) -> list[str]:
        return [line for update in self.updates for line in update.history]


async def test_following_reports_new_lines_once_also_when_a_file_is_replaced(
    tmp_path: Path,
) -> None:
    follower = Follower(tmp_path)
    follower.publish()
    follower.append(f"{HISTORY}.1", "oldest")
    follower.append(HISTORY, "old, and long enough")
    task = asyncio.ensure_future(
        follow_status(follower.head, HEAD, follower.updates.append, every=0.05)
    )
    try:
        await until(lambda: follower.updates, "an update")
        assert follower.history() == ["oldest", "old, and long enough"]
        follower.append(HISTORY, "new")
        await until(lambda: "new" in follower.history(), "the new line")
        follower.append(HISTORY, "last of its file")
        (follower.directory / HISTORY).replace(follower.directory / f"{HISTORY}.1")
        follower.append(HISTORY, "first")
        await until(lambda: "first" in follower.history(), "the line of the new file")
        assert len(follower.history()) == len(set(follower.history())) == 5
        follower.publish(error="the disk is full")
        await until(lambda: follower.updates[-1].report.state.error, "the new status")  # type: ignore[union-attr]
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_broken_status_is_an_error_and_the_last_one_stays(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    follower.publish(price_per_hour=2.0)
    task = asyncio.ensure_future(
        follow_status(follower.head, HEAD, follower.updates.append, every=0.05)
    )
    try:
        await until(lambda: follower.updates, "an update")
        (follower.directory / "new").write_text('{"at": ')
        (follower.directory / "new").replace(follower.directory / STATE)
        await until(lambda: follower.updates[-1].error is not None, "the error")
        report = follower.updates[-1].report
        assert report is not None and report.state.price_per_hour == 2.0
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_following_ends_with_the_controllers_directory(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    follower.publish()
    task = asyncio.ensure_future(
        follow_status(follower.head, HEAD, follower.updates.append, every=0.05)
    )
    await until(lambda: follower.updates, "an update")
    shutil.rmtree(follower.directory)
    await asyncio.wait_for(task, 30)


async def test_a_silent_head_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(tmp_path)
    follower.publish()
    monkeypatch.setattr(status_stream, "_SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(status_stream, "script_command", lambda *args, **options: "sleep 100")
    with pytest.raises(UnreachableError, match="does not answer"):
        await follow_status(follower.head, HEAD, follower.updates.append, every=0.05)
