"""Faults of hosts and links do what they say, and end when they should."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host
from tests.simcloud.processes import Result

pytestmark = pytest.mark.simcloud


async def log_in(laptop: Host, host: Host, patience: int = 30) -> Result:
    options = ["-o", "StrictHostKeyChecking=no", "-o", f"ConnectTimeout={patience}"]
    return await laptop.run(["ssh", *options, f"ubuntu@{host.address}", "true"])


async def ssh(laptop: Host, host: Host, patience: int = 30) -> int:
    """ssh's exit code. Where none is let in, a little patience is enough to see it."""
    return (await log_in(laptop, host, patience)).code


async def test_a_cut_host_is_silent_until_healed(cloud: SimCloud, laptop: Host) -> None:
    host = await cloud.boot()
    assert await ssh(laptop, host) == 0
    await host.cut()
    began = time.monotonic()
    assert await ssh(laptop, host, patience=1) == 255
    assert time.monotonic() - began > 0.9, "it was refused, not lost"
    await host.heal()
    assert await ssh(laptop, host) == 0


async def test_a_killed_host_does_not_say_goodbye(cloud: SimCloud, laptop: Host) -> None:
    host = await cloud.boot()
    with laptop.network():
        reader, writer = await asyncio.open_connection(host.address, 22)
    await reader.readline()
    await host.kill()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.3)
    writer.close()
    assert host.pids() == []


async def test_a_killed_host_boots_again_with_its_disk(cloud: SimCloud, laptop: Host) -> None:
    host = await cloud.boot()
    await host.run("echo kept > /root/note")
    await host.kill()
    await host.boot()
    assert (await host.run("cat /root/note")).stdout == "kept\n"
    assert await ssh(laptop, host) == 0


async def test_a_frozen_host_goes_on_where_it_was(cloud: SimCloud, laptop: Host) -> None:
    host = await cloud.boot()
    await host.popen("while :; do date +%s%N > /tmp/now; sleep 0.01; done")
    now = host.root() / "tmp/now"
    await until(now.exists, "the loop writes")
    await host.freeze()
    frozen = now.read_text()
    assert await ssh(laptop, host, patience=1) == 255
    assert now.read_text() == frozen
    await host.thaw()
    await until(lambda: now.read_text() not in ("", frozen), "the loop goes on")
    assert await ssh(laptop, host) == 0


async def test_ssh_is_refused_for_a_while(cloud: SimCloud, laptop: Host) -> None:
    host = await cloud.boot()
    await host.deny_ssh(5)
    denied = await log_in(laptop, host)
    assert denied.code == 255
    assert "refused" in denied.stderr or "reset" in denied.stderr, "it was lost, not refused"

    async def open_again() -> bool:
        return await ssh(laptop, host) == 0

    await until(open_again, "SSH is let in again", every=0.2)


async def test_a_link_that_loses_every_packet_is_mended_by_losing_none(
    cloud: SimCloud, laptop: Host
) -> None:
    host = await cloud.boot()
    await host.lose_packets(100)
    assert await ssh(laptop, host, patience=1) == 255
    await host.lose_packets(0)
    assert await ssh(laptop, host) == 0


async def test_a_delayed_host_answers_later_until_the_delay_is_lifted(
    cloud: SimCloud, laptop: Host
) -> None:
    host = await cloud.boot()

    async def time_to_connect() -> float:
        with laptop.network():
            began = time.monotonic()
            _, writer = await asyncio.open_connection(host.address, 22)
        took = time.monotonic() - began
        writer.close()
        return took

    await host.delay(150)
    assert await time_to_connect() >= 0.15
    copied = await laptop.run(
        "ssh -q -o StrictHostKeyChecking=no ubuntu@host-1 'head -c 1000000 /dev/zero' | wc -c"
    )
    assert copied.stdout.strip() == "1000000"
    await host.delay(0)

    async def is_quick() -> bool:
        return await time_to_connect() < 0.15

    await until(is_quick, "it answers at once again")


async def test_a_full_disk_refuses_writes_everywhere(cloud: SimCloud) -> None:
    host = await cloud.boot(disk_mib=64)
    neighbour = await cloud.boot(disk_mib=64)
    await host.fill_disk()
    for place in ("/tmp/more", "/home/ubuntu/more", "/var/more"):
        result = await host.run(f"head -c 100000 /dev/zero > {place}")
        assert "No space left" in result.stderr
    assert (await neighbour.run("head -c 100000 /dev/zero > /tmp/more")).code == 0


async def test_a_hanging_command_never_returns_and_others_do(cloud: SimCloud) -> None:
    host = await cloud.boot()
    await host.hang("rsync")
    with pytest.raises(TimeoutError):
        await host.run(["rsync", "--version"], timeout=0.5)
    assert (await host.run(["ssh", "-V"])).code == 0
