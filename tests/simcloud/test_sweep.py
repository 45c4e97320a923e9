"""Nothing of a cloud outlives its owner, and a sweep ends no process of another owner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.host_image import PROJECT
from tests.simcloud.processes import execute
from tests.simcloud.sweep import marked, sweep

pytestmark = pytest.mark.simcloud

OWNER = """
import asyncio
from tests.simcloud.cloud import SimCloud

async def main():
    async with SimCloud() as cloud:
        await asyncio.gather(cloud.laptop(), cloud.boot(), cloud.boot())
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def owned_by(pid: int) -> list[int]:
    return [child for child, owner in marked().items() if owner.startswith(f"{pid}:")]


def outside() -> tuple[set[str], str]:
    """Return what could be seen of a cloud from outside: interfaces and mounts."""
    interfaces = {entry.name for entry in Path("/sys/class/net").iterdir()}
    return interfaces, Path("/proc/self/mounts").read_text()


async def owner_with_a_cloud() -> asyncio.subprocess.Process:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, cwd=PROJECT, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert await asyncio.wait_for(owner.stdout.readline(), 90) == b"up\n"
    return owner


async def test_a_cloud_is_gone_after_its_block_and_was_never_seen_outside() -> None:
    before, processes = outside(), owned_by(os.getpid())
    async with SimCloud() as cloud:
        await asyncio.gather(cloud.laptop(), cloud.boot())
        assert len(owned_by(os.getpid())) >= len(processes) + 2
        assert outside() == before
    assert owned_by(os.getpid()) == processes


async def test_a_cloud_dies_with_an_owner_that_was_killed() -> None:
    owner = await owner_with_a_cloud()
    assert len(owned_by(owner.pid)) >= 3
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    await until(lambda: not owned_by(owner.pid), "every process of the cloud is gone")


async def test_a_sweep_ends_what_a_dead_owner_left_and_leaves_a_living_cloud_alone() -> None:
    orphan = await asyncio.create_subprocess_exec(
        "sleep", "600", env={"SHOAL_SIMCLOUD_OWNER": "999999999:1"}
    )
    owner = await owner_with_a_cloud()
    living = owned_by(owner.pid)
    swept = await execute([sys.executable, "-m", "tests.simcloud", "clean"])
    assert "ended" in swept.stdout, swept.stderr
    assert await asyncio.wait_for(orphan.wait(), 5) == -signal.SIGKILL
    assert owned_by(owner.pid) == living
    owner.kill()
    await owner.wait()


async def test_two_clouds_with_the_same_addresses_do_not_meet() -> None:
    async with SimCloud() as one, SimCloud() as other:
        await one.boot("10.1.2.3", name="first")
        await other.boot("10.1.2.3", name="second")
        for cloud, name in ((one, "first"), (other, "second")):
            laptop = await cloud.laptop()
            address = "ubuntu@10.1.2.3"
            result = await laptop.run(
                ["ssh", "-q", "-o", "StrictHostKeyChecking=no", address, "hostname"]
            )
            assert result.stdout.strip() == name


def test_a_sweep_of_nothing_ends_nothing() -> None:
    sweep()
    assert sweep() == []
