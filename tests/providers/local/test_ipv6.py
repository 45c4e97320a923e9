"""Hosts that a file lists by their IPv6 addresses, with real Ray. The tests share one cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.providers.local.ssh_bed import ON_EVERY_NODE, QUICK_START, USE_OUR_RAY, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

CONTROLLER_PORT = 6378


def provider(hosts: list[Host]) -> dict[str, object]:
    head, *workers = hosts
    # In another spelling, which means the same address.
    head_ip = f"[{head.ipv6_address.upper()}]"
    return {
        "type": "local",
        "head_ip": head_ip,
        "worker_ips": [host.ipv6_address for host in workers],
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(2)))
        bed = Bed(cloud, laptop, hosts)
        await laptop.run("mkdir code; cat > code/where.py", stdin=ON_EVERY_NODE)
        await bed.write(
            provider=provider(hosts),
            file_mounts={"~/code": "code"},
            setup_commands=[USE_OUR_RAY],
        )
        await bed.up()
        yield bed
        done = await bed.shoal("down c.yaml --yes")
        assert done.code == 0, done.stderr


@pytest.mark.long
@pytest.mark.ray
async def test_a_program_runs_on_every_node(bed: Bed) -> None:
    done = await bed.shoal("exec c.yaml 'python code/where.py'")
    assert done.code == 0, done.stderr
    assert done.stdout.strip() == str(sorted(host.ipv6_address for host in bed.hosts))


@pytest.mark.long
@pytest.mark.ray
async def test_status_reports_every_node_as_ready(bed: Bed) -> None:
    done = await bed.shoal("status c.yaml --json")
    assert done.code == 0, done.stdout + done.stderr
    nodes = json.loads(done.stdout)["nodes"]
    assert [(n["name"], n["phase"]) for n in nodes] == [("head", "ready"), ("worker-1", "ready")]


@pytest.mark.long
@pytest.mark.ray
async def test_agents_on_workers_reach_the_controller(bed: Bed) -> None:
    connect = f"exec 3<>/dev/tcp/{bed.head.ipv6_address}/{CONTROLLER_PORT}"
    done = await bed.workers[0].run(connect)
    assert done.code == 0, done.stderr
    agents = await bed.read(bed.workers[0], "pgrep -fc '[l]ease_agent|[c]ontroller_request'")
    assert int(agents) > 0


@pytest.mark.long
@pytest.mark.ray
async def test_plain_ssh_finds_a_node_by_its_name(bed: Bed) -> None:
    await bed.laptop.run("shoal ssh-config c.yaml --write")
    done = await bed.laptop.run("ssh mine-worker-1 hostname")
    assert done.stdout.strip() == bed.workers[0].name, done.stderr


async def test_workers_behind_the_head_are_reached_through_it() -> None:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(2)))
        bed = Bed(cloud, laptop, hosts)
        unreachable = hosts[1].ipv6_address
        await laptop.run(f"ip route add blackhole {unreachable}/128", user="root")
        await bed.write(provider=provider(hosts), **QUICK_START)
        await bed.write(shoal={"via_head": True})
        events = await bed.up()
        assert events[-1]["nodes"] == 2
