"""Simulated hosts with their own network: restarted, disconnected, or behind another host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.errors import UnreachableError
from shoal.remote import ssh_target as target_module
from shoal.remote.control_master import close_connection
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget
from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = pytest.mark.simcloud

TargetOf = Callable[[Host], SshTarget]


@pytest.fixture
async def target_of(cloud: SimCloud, laptop: Host, state: Path) -> AsyncIterator[TargetOf]:
    """How the laptop logs in to a host; the test itself runs in the laptop's network."""
    key = state / "id"
    key.write_text(cloud.laptop_key.private)
    key.chmod(0o600)

    made: list[SshTarget] = []

    def make_target(host: Host) -> SshTarget:
        target = SshTarget(
            host=host.address,
            user="ubuntu",
            key=key,
            known_hosts=state / "known_hosts",
            host_key_alias=host.name,
            control_dir=state / "c",
            config=Path("/dev/null"),
        )
        made.append(target)
        return target

    with laptop.network():
        yield make_target
        for target in made:
            await close_connection(target)


async def test_a_host_that_restarts_is_reached_again(cloud: SimCloud, target_of: TargetOf) -> None:
    host = await cloud.boot()
    runner = SshRunner(host.name, target_of(host))
    await runner.connect(timeout=60)
    await host.reboot()
    assert (await runner.run("hostname")).tail == (host.name,)


async def test_a_connection_that_died_silently_is_replaced(
    cloud: SimCloud, target_of: TargetOf
) -> None:
    host = await cloud.boot()
    runner = SshRunner(host.name, target_of(host), session_timeout=1.0)
    await runner.connect(timeout=60)
    await host.kill()  # the laptop gets no packet about it
    await host.boot()
    assert (await runner.run("hostname", timeout=60)).tail == (host.name,)


async def test_a_lost_network_during_a_command_is_an_error_and_does_not_hang(
    cloud: SimCloud, target_of: TargetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "_ALIVE_INTERVAL", 1)
    host = await cloud.boot()
    runner = SshRunner(host.name, target_of(host))
    lines: list[str] = []
    running = asyncio.ensure_future(
        runner.run("echo started; sleep 300", on_line=lambda line, _: lines.append(line))
    )
    await until(lambda: lines == ["started"])
    await host.cut()
    with pytest.raises(UnreachableError, match="while a command ran"):
        await asyncio.wait_for(running, 60)


async def test_the_private_key_never_reaches_the_head_before_a_worker(
    cloud: SimCloud, target_of: TargetOf
) -> None:
    head, worker = await asyncio.gather(cloud.boot(), cloud.boot())
    target = replace(target_of(worker), jump=target_of(head))
    runner = SshRunner(worker.name, target)
    result = await runner.run('echo "${SSH_CONNECTION%% *}"; hostname; test -z "$SSH_AUTH_SOCK"')
    assert result.ok
    assert result.tail == (head.address, worker.name)
    assert target.key is not None
    secret = target.key.read_text().splitlines()[2]
    matches = await head.run(["grep", "-rl", "--", secret, "/home", "/tmp"])
    assert matches.stdout == ""


async def test_a_root_process_of_a_command_ends_with_it(
    cloud: SimCloud, target_of: TargetOf
) -> None:
    host = await cloud.boot()
    runner = SshRunner(host.name, target_of(host))
    await runner.connect(timeout=60)
    started = host.root() / "tmp/started"
    for seconds in (1, 5, 25):  # until it is long enough for the command to start
        with pytest.raises(TimeoutError):
            await runner.run("sudo sh -c 'touch /tmp/started; exec sleep 7330'", timeout=seconds)
        if started.exists():
            break
    assert started.exists()

    async def has_ended() -> bool:
        return (await host.run("pgrep -fx 'sleep 7330' || true")).stdout == ""

    await until(has_ended, "the process has ended", every=0.2)
