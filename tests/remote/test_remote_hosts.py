"""Machines with a network of their own: cut off, restarted, or behind another."""

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

WayTo = Callable[[Host], SshTarget]


@pytest.fixture
async def way_to(cloud: SimCloud, laptop: Host, state: Path) -> AsyncIterator[WayTo]:
    """How the laptop logs in to a host; the test itself then runs in the laptop's network."""
    key = state / "id"
    key.write_text(cloud.laptop_key.private)
    key.chmod(0o600)

    made: list[SshTarget] = []

    def way(host: Host) -> SshTarget:
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
        yield way
        for target in made:
            await close_connection(target)


async def test_a_machine_that_restarts_is_reached_again(cloud: SimCloud, way_to: WayTo) -> None:
    host = await cloud.boot()
    runner = SshRunner(host.name, way_to(host))
    await runner.connect(timeout=60)
    await host.reboot()
    assert (await runner.run("hostname")).tail == (host.name,)


async def test_a_connection_that_died_unheard_is_replaced(cloud: SimCloud, way_to: WayTo) -> None:
    host = await cloud.boot()
    runner = SshRunner(host.name, way_to(host), session_timeout=1.0)
    await runner.connect(timeout=60)
    await host.kill()  # mute: nobody tells the laptop
    await host.boot()
    assert (await runner.run("hostname", timeout=60)).tail == (host.name,)


async def test_a_cut_under_a_command_is_noticed_and_does_not_hang(
    cloud: SimCloud, way_to: WayTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_module, "_ALIVE_INTERVAL", 1)
    host = await cloud.boot()
    runner = SshRunner(host.name, way_to(host))
    lines: list[str] = []
    work = asyncio.ensure_future(
        runner.run("echo begun; sleep 300", on_line=lambda line, _: lines.append(line))
    )
    await until(lambda: lines == ["begun"])
    await host.cut()
    with pytest.raises(UnreachableError, match="while a command ran"):
        await asyncio.wait_for(work, 60)


async def test_a_worker_behind_the_head_sees_the_head_and_never_the_key(
    cloud: SimCloud, way_to: WayTo
) -> None:
    head, worker = await asyncio.gather(cloud.boot(), cloud.boot())
    target = replace(way_to(worker), jump=way_to(head))
    runner = SshRunner(worker.name, target)
    done = await runner.run('echo "${SSH_CONNECTION%% *}"; hostname; test -z "$SSH_AUTH_SOCK"')
    assert done.ok
    assert done.tail == (head.address, worker.name)
    assert target.key is not None
    secret = target.key.read_text().splitlines()[2]
    found = await head.run(["grep", "-rl", "--", secret, "/home", "/tmp"])
    assert found.stdout == ""


async def test_what_a_command_ran_as_root_ends_with_it(cloud: SimCloud, way_to: WayTo) -> None:
    host = await cloud.boot()
    runner = SshRunner(host.name, way_to(host))
    await runner.connect(timeout=60)
    begun = host.root() / "tmp/begun"
    for seconds in (1, 5, 25):  # until it is long enough to begin
        with pytest.raises(TimeoutError):
            await runner.run("sudo sh -c 'touch /tmp/begun; exec sleep 7330'", timeout=seconds)
        if begun.exists():
            break
    assert begun.exists()

    async def is_over() -> bool:
        return (await host.run("pgrep -fx 'sleep 7330' || true")).stdout == ""

    await until(is_over, "nothing is left of it", every=0.2)
