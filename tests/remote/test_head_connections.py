"""The connections of a head to its hosts, closed from either end, with a real SSH server."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.remote import head_connections, session_pool
from shoal.remote.control_master import close_connection, is_open
from shoal.remote.runner import capture
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget, control_directory
from tests.polling import until
from tests.remote.sshd import Sshd, target_of

pytestmark = pytest.mark.processes


@pytest.fixture
def owner() -> str:
    return f"c{secrets.token_hex(4)}@10.0.0.1"


@pytest.fixture
async def head(server: Sshd, state: Path, key: Path, owner: str) -> AsyncIterator[SshTarget]:
    """The server as the head of the cluster reaches it, with an open connection."""
    target = replace(target_of(server, state, key), control_dir=control_directory(owner))
    await SshRunner("node-1", target).connect(timeout=20)
    yield target
    await close_connection(target)


async def run(target: SshTarget, command: str) -> list[str]:
    runner = SshRunner("node-1", target)
    await runner.connect(timeout=20)
    done, lines = await capture(runner, command, timeout=20, skip_profile=True)
    assert done.ok
    return lines


async def is_closed(target: SshTarget) -> bool:
    return not await is_open(target)


async def test_a_host_closes_the_connection_of_its_head_and_no_other(
    runner: SshRunner, server: Sshd, state: Path, key: Path, owner: str
) -> None:
    head = target_of(server, state, key)
    await run(head, head_connections.note_command(owner))
    await runner.connect(timeout=20)
    close = head_connections.close_command(owner)
    done, lines = await capture(runner, close, timeout=20, skip_profile=True)
    assert (done.ok, lines) == (True, [])
    await until(lambda: is_closed(head), "it is closed")
    assert (await runner.run("true", timeout=20)).ok
    assert not control_directory(owner).exists()


async def test_the_head_closes_its_connections_after_what_runs_over_them(
    head: SshTarget, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(session_pool, "_LAST_IDLE_SECONDS", 0.1)
    sockets = head.control_dir
    assert await run(head, f"{head_connections.close_command(owner)}; echo done") == ["done"]
    assert not sockets.exists()
    await until(lambda: not _masters(head), "no ssh is left")


def _masters(target: SshTarget) -> list[str]:
    """The ssh processes that hold this connection."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(target.socket) in command:
            found.append(process.name)
    return found
