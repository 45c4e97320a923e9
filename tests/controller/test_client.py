"""The controller as the laptop sees it: it is resumed after a failure, and its reports are read
whatever their size."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from pathlib import Path
from typing import cast

import pytest

from shoal.bootstrap.node_probe import NodeProbe
from shoal.cli.controller_status import pending_lines
from shoal.cluster.handle import ClusterHandle
from shoal.controller import client, status_file, status_reader
from shoal.controller.lifecycle import Node
from shoal.controller.paths import DIRECTORY, JOURNAL, STATE
from shoal.controller.state import Decision, NodeUpdated, to_line
from shoal.controller.status_file import ControllerStatus, WaitingDemand
from shoal.core.errors import SetupError
from shoal.core.node_phase import Phase
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Provider
from shoal.ray_runtime.ray_start import RayStart
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Runner
from tests.specs import cluster

HEAD = Instance("id-head", "c", "head", "head", "head", State.RUNNING, "127.77.0.1", None)


class Head(ClusterHandle):
    """A cluster whose head records the controller commands that it runs."""

    def __init__(self, home: Path, *, ray_runs: bool = True) -> None:
        super().__init__(cast(Provider, self), cluster())
        (home / ".shoal" / "controller").mkdir(parents=True)
        (home / "python").write_text('#!/bin/sh\necho "$3" >> commands\n')
        (home / "python").chmod(0o755)
        self._home = home
        self._ray_runs = ray_runs

    def ray_start(self, *_: object) -> RayStart:
        return RayStart((), {}, "127.77.0.1:6379", "./python", 0)

    def node_runner(self, *_: object) -> Runner:
        return LocalRunner(self._home, {})

    async def probe(self, instance: Instance) -> NodeProbe:
        return NodeProbe(ray_runs=self._ray_runs)

    @property
    def commands(self) -> list[str]:
        return (self._home / "commands").read_text().split()


@pytest.mark.parametrize("error", [SetupError("a setup command failed"), asyncio.CancelledError()])
async def test_a_failed_or_cancelled_command_resumes_the_controller(
    tmp_path: Path, error: BaseException
) -> None:
    fake = Head(tmp_path)
    with pytest.raises(type(error)):
        async with client.controller_paused(fake, [HEAD]):
            assert fake.commands == ["stop"]
            raise error
    assert fake.commands == ["stop", "resume"]


async def test_the_controller_is_not_resumed_on_a_head_without_ray(tmp_path: Path) -> None:
    fake = Head(tmp_path, ray_runs=False)
    with pytest.raises(SetupError):
        async with client.controller_paused(fake, [HEAD]):
            raise SetupError("a setup command failed")
    assert fake.commands == ["stop"]


async def test_a_successful_command_does_not_resume_the_controller(tmp_path: Path) -> None:
    fake = Head(tmp_path)
    async with client.controller_paused(fake, [HEAD]):
        pass
    assert fake.commands == ["stop"]


async def test_a_status_of_a_thousand_nodes_and_decisions_is_read(tmp_path: Path) -> None:
    head = Head(tmp_path)
    nodes = [
        {"id": f"i-{n:017x}", "name": f"worker-{n}", "role": "worker", "why": "8 x {CPU: 1} wait"}
        for n in range(1000)
    ]
    decisions = [Decision(float(n), "launch", f"worker-{n}", "8 tasks wait") for n in range(1000)]
    written = ControllerStatus(time.time(), 1, "c", nodes=tuple(nodes), decisions=tuple(decisions))
    status_file.write(tmp_path / DIRECTORY, written)
    report = await status_reader.read_status(head, HEAD)
    assert report is not None
    assert report.alive
    assert (report.state.nodes, report.state.decisions) == (written.nodes, written.decisions)


@pytest.mark.parametrize("hours", [-3, 3])
async def test_a_head_whose_clock_is_wrong_reports_correct_durations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    fake_date = tmp_path / "bin" / "date"
    fake_date.parent.mkdir()
    fake_date.write_text(f'#!/bin/sh\necho $(($({shutil.which("date")} "$@") + {hours * 3600}))\n')
    fake_date.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake_date.parent}:{os.environ['PATH']}")
    now = time.time() + hours * 3600
    waiting = WaitingDemand("{CPU: 1}", 1, now - 95, "coming")
    head = Head(tmp_path)
    status_file.write(tmp_path / DIRECTORY, ControllerStatus(now, 1, "c", waiting=(waiting,)))
    report = await status_reader.read_status(head, HEAD)
    assert report is not None
    assert report.alive
    (line,) = pending_lines(report.state.waiting, report.read_at)
    assert line.startswith("pending for 1m ")


async def test_a_status_that_cannot_be_parsed_is_an_error_and_not_a_missing_controller(
    tmp_path: Path,
) -> None:
    head = Head(tmp_path)
    (tmp_path / DIRECTORY / STATE).write_text('{"at": 1')
    with pytest.raises(SetupError, match="could not parse"):
        await status_reader.read_status(head, HEAD)
    (tmp_path / DIRECTORY / STATE).unlink()
    assert await status_reader.read_status(head, HEAD) is None


async def test_a_long_journal_entry_of_a_node_is_read(tmp_path: Path) -> None:
    head = Head(tmp_path)
    node = Node("i-1", "worker-1", "w", "worker", Phase.FAILED, 1.0, 1.0, detail="x" * 20_000)
    (tmp_path / DIRECTORY / JOURNAL).write_text(to_line(NodeUpdated(node)) + "\n")
    assert await status_reader.read_nodes(head, HEAD, "worker-1") == [node]
