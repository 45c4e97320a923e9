"""Following a controller over real SSH: one connection, live updates, and nothing left on the
head."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import psutil
import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.controller import status_file, status_stream
from shoal.controller.paths import DIRECTORY, HISTORY
from shoal.controller.status_file import ControllerStatus
from shoal.controller.status_stream import StatusUpdate, follow_status
from shoal.core.errors import UnreachableError
from shoal.providers.model import Instance, State
from shoal.providers.protocol import Provider
from shoal.remote.runner import Runner
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget
from tests.polling import until
from tests.remote.sshd import Sshd, running
from tests.specs import cluster

pytestmark = pytest.mark.processes

HEAD = Instance("id-head", "c", "head", "head", "head", State.RUNNING, "127.0.0.1", None)


class SshHead(ClusterHandle):
    """A cluster whose head is reached over SSH."""

    def __init__(self, runner: SshRunner) -> None:
        super().__init__(cast(Provider, self), cluster())
        self._runner = runner

    def node_runner(self, *_: object) -> Runner:
        return self._runner


def controller_directory(server: Sshd) -> Path:
    directory = server.home / DIRECTORY
    directory.mkdir(parents=True)
    status_file.write(directory, ControllerStatus(time.time(), 1, "c"))
    (directory / HISTORY).write_text("first\n")
    return directory


async def test_updates_arrive_and_nothing_runs_on_the_head_afterwards(
    runner: SshRunner, server: Sshd
) -> None:
    directory = controller_directory(server)
    updates: list[StatusUpdate] = []
    following = asyncio.ensure_future(
        follow_status(SshHead(runner), HEAD, updates.append, every=0.1)
    )
    await until(lambda: updates, "the first update")
    with (directory / HISTORY).open("a") as file:
        file.write("second\n")
    await until(lambda: any("second" in u.history for u in updates), "the new line")
    assert updates[0].history == ("first",)
    assert running("follow_status.sh")
    following.cancel()
    await asyncio.wait({following})
    await until(lambda: not running("follow_status.sh"), "the end of the command on the head")


async def test_a_connection_that_hangs_is_noticed(
    new_server: Callable[..., tuple[Sshd, SshTarget]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target)
    controller_directory(server)
    monkeypatch.setattr(status_stream, "_SILENCE_SECONDS", 3.0)
    updates: list[StatusUpdate] = []
    following = asyncio.ensure_future(
        follow_status(SshHead(runner), HEAD, updates.append, every=0.1)
    )
    await until(lambda: updates, "the first update")
    server.stall()
    with pytest.raises(UnreachableError, match="does not answer"):
        await asyncio.wait_for(following, 60)


async def test_other_commands_share_the_connection(runner: SshRunner, server: Sshd) -> None:
    controller_directory(server)
    updates: list[StatusUpdate] = []
    following = asyncio.ensure_future(
        follow_status(SshHead(runner), HEAD, updates.append, every=0.1)
    )
    try:
        await until(lambda: updates, "the first update")
        assert (await runner.run("echo hello", skip_profile=True)).tail == ("hello",)
        assert len(_connections(server)) == 1
    finally:
        following.cancel()
        await asyncio.wait({following})


def _connections(server: Sshd) -> set[int]:
    """The local ports from which this machine is connected to the server."""
    return {
        c.raddr[1]
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_ESTABLISHED and c.raddr and c.laddr[1:] == (server.port,)
    }
