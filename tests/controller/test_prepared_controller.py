"""A controller that is prepared while workers still start, and then gets its config."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from shoal.controller.node_manager import NodeManager
from shoal.controller.paths import CONFIG, DIRECTORY, PREPARED_CONFIG, SUPERVISOR_LOCK
from shoal.controller.warm_up import warm_up
from shoal.core.clock import SystemClock
from shoal.core.errors import TransientError
from shoal.core.file_lock import FileLock
from shoal.providers.model import Instance
from shoal.ray_runtime.gcs_client import GcsReading
from shoal.remote.scripts import script_command
from tests.polling import until


class ReadOnlyCluster:
    """A GCS and instances that can be read and nothing else. The GCS does not answer at first."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def read(self) -> GcsReading:
        self.calls.append("read")
        if len(self.calls) == 1:
            raise TransientError("it does not answer yet")
        return GcsReading()

    def nodes_with_actors(self) -> Sequence[str]:
        raise AssertionError

    async def list_instances(self) -> Sequence[Instance]:
        self.calls.append("list")
        return []


@pytest.mark.parametrize("ends_with", ["a config", "no config"])
async def test_a_prepared_controller_only_connects_until_it_has_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_with: str
) -> None:
    monkeypatch.setattr("shoal.controller.warm_up._RETRY_SECONDS", 0.01)
    (tmp_path / PREPARED_CONFIG).touch()
    cluster = ReadOnlyCluster()
    node_manager = cast(NodeManager, cluster)
    waiting = asyncio.ensure_future(warm_up(tmp_path, node_manager, cluster, SystemClock()))
    await until(lambda: cluster.calls == ["read", "read", "list"], "it is connected")
    assert not waiting.done()
    if ends_with == "a config":
        (tmp_path / CONFIG).touch()
    else:
        (tmp_path / PREPARED_CONFIG).unlink()
    await asyncio.wait_for(waiting, 20)
    assert cluster.calls == ["read", "read", "list"]


@pytest.mark.parametrize(
    ("is_prepared", "options", "starts"),
    [(True, [], False), (False, [], True), (True, ["--secret=A"], True)],
)
def test_deploying_starts_no_process_if_a_prepared_controller_waits(
    tmp_path: Path, is_prepared: bool, options: list[str], starts: bool
) -> None:
    directory = tmp_path / DIRECTORY
    directory.mkdir(parents=True)
    (directory / "version").write_text("v1\n")
    if is_prepared:
        (directory / PREPARED_CONFIG).touch()
    scripts = "shoal.controller.scripts"
    command = script_command(scripts, "deploy_controller.sh", "false", "v1", "", *options)
    with FileLock(directory / SUPERVISOR_LOCK) as lock:
        assert lock.try_acquire()
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, input=b"{}", timeout=20)
    assert done.returncode == (1 if starts else 0), "`false` is started in place of the controller"
    assert (directory / CONFIG).read_text() == "{}"
    assert not (directory / PREPARED_CONFIG).exists()
