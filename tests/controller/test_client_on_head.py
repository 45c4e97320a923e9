"""Commands of the client on a head, with shells and locks in place of a real controller."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.controller import client, status_reader
from shoal.controller.journal import Journal
from shoal.controller.lifecycle import Node
from shoal.controller.paths import CONFIG, CONTROLLER_LOCK, DIRECTORY, HEARTBEAT, JOURNAL, STATE
from shoal.controller.state import Decision, NodeUpdated
from shoal.controller.status_file import ControllerStatus
from shoal.core.clock import SystemClock
from shoal.core.errors import SetupError, UnreachableError
from shoal.core.node_phase import Phase
from shoal.providers.embedded.embedded_provider import EmbeddedProvider
from shoal.providers.model import Instance, LaunchRequest
from tests.polling import until
from tests.specs import cluster

Head = tuple[ClusterHandle, Instance, Path]


@pytest.fixture
async def head(tmp_path: Path) -> AsyncIterator[Head]:
    """A head with a controller's directory, on which Shoal's Python package is broken."""
    provider = EmbeddedProvider(tmp_path / "with a space", SystemClock())
    spec = cluster()
    (instance,) = await provider.launch(spec, [LaunchRequest("head", "head", 1, "t")])
    home = tmp_path / "with a space" / instance.id
    broken = home / ".shoal/lib/1/shoal"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('it is broken')")
    directory = home / DIRECTORY
    directory.mkdir(parents=True)
    (directory / CONFIG).touch()
    yield ClusterHandle(provider, spec), instance, directory
    await provider.terminate(spec, [instance])


@contextmanager
def holding(directory: Path, script: str) -> Iterator[None]:
    """Hold the controller's lock while a script runs in its directory."""
    argv = ["flock", CONTROLLER_LOCK, "sh", "-c", f"touch held; {script}"]
    with subprocess.Popen(argv, cwd=directory) as process:
        try:
            yield
        finally:
            process.terminate()


async def test_a_controller_is_stopped_without_a_working_python(head: Head) -> None:
    handle, instance, directory = head
    with holding(directory, f"while [ -e {CONFIG} ]; do sleep 0.1; done; touch ended"):
        await until((directory / "held").exists, "a controller runs")
        assert await client.stop_controller(handle, instance)
        assert (directory / "ended").exists(), "its exit is awaited"


async def test_a_controller_that_does_not_stop_is_an_error(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, instance, directory = head
    monkeypatch.setattr(client, "_EXIT_POLLS", 1)
    with holding(directory, "exec sleep 60"):
        await until((directory / "held").exists, "a controller runs")
        with pytest.raises(SetupError, match="does not stop") as caught:
            await client.stop_controller(handle, instance)
    assert "it is broken" in "".join(caught.value.output)
    assert CONTROLLER_LOCK in caught.value.fix


@pytest.mark.parametrize(("ago", "alive"), [(1, True), (100, False)])
async def test_the_age_of_the_status_is_measured_with_the_heads_clock(
    head: Head, monkeypatch: pytest.MonkeyPatch, ago: int, alive: bool
) -> None:
    handle, instance, directory = head
    now = time.time()
    _write_state(directory, published_at=now - ago, heartbeat_at=now - ago)
    monkeypatch.setattr(time, "time", lambda: now + 86_400)  # this machine's clock is a day ahead
    report = await status_reader.read_status(handle, instance)
    assert report is not None
    assert report.alive is alive
    assert report.age_s == pytest.approx(ago, abs=12)


async def test_a_controller_that_cannot_write_its_status_is_not_taken_for_dead(
    head: Head,
) -> None:
    handle, instance, directory = head
    now = time.time()
    _write_state(directory, published_at=now - 300, heartbeat_at=now)
    report = await status_reader.read_status(handle, instance)
    assert report is not None
    assert report.alive
    assert "disk full" in report.state.error


def _write_state(directory: Path, *, published_at: float, heartbeat_at: float) -> None:
    (directory / STATE).write_text(json.dumps(vars(ControllerStatus(published_at, 1, "c"))))
    (directory / HEARTBEAT).touch()
    os.utime(directory / HEARTBEAT, (heartbeat_at, heartbeat_at))


async def test_a_head_without_a_status_is_no_error(head: Head) -> None:
    handle, instance, directory = head
    report = await status_reader.read_status(handle, instance)
    assert report is not None, "its controller was started"
    assert not report.alive
    (directory / CONFIG).unlink()
    assert await status_reader.read_status(handle, instance) is None


async def test_a_head_that_does_not_answer_is_an_error(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_reader, "READ_SECONDS", 0.2)
    handle, instance, directory = head
    os.mkfifo(directory / STATE)  # reading it blocks
    with pytest.raises(UnreachableError, match="does not answer"):
        await status_reader.read_status(handle, instance)


async def test_a_node_that_was_terminated_long_ago_is_found_in_the_journal(head: Head) -> None:
    handle, instance, directory = head
    journal = Journal(directory / JOURNAL)
    node = Node("i-7", "worker-7", "t", "worker", Phase.READY, 1.0, 1.0, why="one waits")
    journal.record(NodeUpdated(node), Decision(2.0, "drain", "worker-7", "idle"))
    journal.record(NodeUpdated(replace(node, phase=Phase.GONE, ended="idle")))
    journal.record(NodeUpdated(replace(node, id="i-77", name="worker-77")))
    for name in ("worker-7", "i-7"):
        (node,) = await status_reader.read_nodes(handle, instance, name)
        assert (node.id, node.phase, node.ended) == ("i-7", Phase.GONE, "idle")
    assert await status_reader.read_nodes(handle, instance, "worker-8") == []
