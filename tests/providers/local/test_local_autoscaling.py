"""The controller claims listed hosts for work and releases idle ones, without the laptop. All
tests share one cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from tests.polling import until
from tests.providers.local.ssh_bed import HOLD_NODES, USE_OUR_RAY, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
]

ACTORS = """
import os, sys, ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=os.cpu_count())
class Worker:
    def where(self):
        return ray.util.get_node_ip_address()

# All at once: each holds its node until the others have one.
workers = [Worker.remote() for _ in range(int(sys.argv[1]))]
print("done on", len(set(ray.get([worker.where.remote() for worker in workers]))))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
        bed = Bed(cloud, laptop, hosts)
        await laptop.run("mkdir code; cat > code/actors.py", stdin=ACTORS)
        await laptop.run("cat > code/hold.py", stdin=HOLD_NODES)
        await bed.write(
            file_mounts={"~/code": "code"},
            setup_commands=[USE_OUR_RAY],
            min_workers=0,
            max_workers=2,
            idle_timeout_minutes=0.1,
            # Nothing says what the workers have.
            shoal={"hosts": {hosts[0].address: {"resources": {"CPU": 0}}}},
        )
        events = await bed.up()
        assert [e for e in events if e["event"] == "warning"] == []
        yield bed
        done = await bed.shoal("down c.yaml --yes")
        assert done.code == 0, done.stderr
        for host in hosts:
            left = "ls -d ~/.shoal /tmp/shoal-* 2>/dev/null; true"
            assert await bed.read(host, left) == ""
            # A link that was cut carries the end of a connection only with its next packet.
            await until(partial(_is_alone, bed, host), f"{host.address} is left alone")


async def _is_alone(bed: Bed, host: Host) -> bool:
    """Whether neither the controller nor Ray nor a connection of the head is on this host."""
    left = "pgrep -f '[s]hoal.controller|[r]aylet'; pgrep -x ssh; "
    left += f"ss -Htn state established dst {bed.head.address} | grep :22; true"
    return await bed.read(host, left) == ""


async def runs_ray(bed: Bed, host: Host) -> bool:
    return await bed.read(host, "pgrep -x raylet || true") != ""


@pytest.mark.long
async def test_the_cluster_scales_to_four_and_back_while_the_laptop_is_unreachable(
    bed: Bed,
) -> None:
    listed = bed.hosts
    bed.hosts = [*listed, *await asyncio.gather(*(bed.cloud.boot() for _ in range(2)))]
    await bed.write(max_workers=4)
    await bed.up()
    job = await bed.laptop.popen(
        "exec shoal exec c.yaml 'nohup python code/actors.py 4 > out.txt 2>&1 &'"
    )
    await job.finish()
    out = bed.head.root() / "home/ubuntu/out.txt"
    async with bed.laptop.cut_off():
        await until(lambda: "done on 4" in out.read_text(), "the actors have run", timeout=240)
        for worker in bed.workers:
            code = worker.root() / "home/ubuntu/code"
            assert (code / "actors.py").exists(), "files come from the head"
        await until(lambda: _released(bed), "all hosts are released", timeout=120)
        for worker in bed.workers:
            assert not await runs_ray(bed, worker)
    bed.hosts = listed
    await bed.write(max_workers=2)
    await bed.up()


async def test_the_controller_runs_from_the_uploaded_package(bed: Bed) -> None:
    printed = await bed.read(
        bed.head, "tr '\\0' '\\n' < /proc/$(cat ~/.shoal/controller/controller.lock)/environ"
    )
    assert "PYTHONPATH=/home/ubuntu/.shoal/lib/" in printed


async def test_the_head_gets_the_host_keys_that_the_laptop_has_pinned(bed: Bed) -> None:
    config = bed.head.root() / "home/ubuntu/.shoal/controller/config.json"
    pinned = json.loads(config.read_text())["host_keys"]
    by_address = {
        address: [" ".join(key.split()[:2]) for key in keys] for address, keys in pinned.items()
    }
    actual = {h.address: [" ".join(h.machine.host_key.public.split()[:2])] for h in bed.hosts}
    assert {address: by_address[address] for address in actual} == actual


async def test_a_released_host_becomes_a_node_again(bed: Bed) -> None:
    done = await bed.shoal("exec c.yaml 'python code/actors.py 2'", timeout=240)
    assert "done on 2" in done.stdout, done.stderr


@pytest.mark.long
async def test_a_rebooted_host_becomes_a_node_again(bed: Bed) -> None:
    await bed.workers[0].reboot()
    done = await bed.shoal("exec c.yaml 'python code/actors.py 2'", timeout=240)
    assert "done on 2" in done.stdout, done.stderr


@pytest.mark.long
async def test_an_unreachable_worker_costs_no_other_node(bed: Bed) -> None:
    await bed.write(min_workers=2)
    await bed.up()
    log = bed.head.root() / "home/ubuntu/.shoal/controller/controller.log"
    heartbeat = log.with_name("heartbeat")
    healthy, lost = bed.workers
    noticed = f"host {lost.address} is unreachable"
    before = log.read_text().count(noticed)
    async with lost.cut_off():
        await until(lambda: log.read_text().count(noticed) > before, "it is noticed", timeout=60)
        noticed_at = heartbeat.stat().st_mtime
        await until(lambda: heartbeat.stat().st_mtime > noticed_at + 3, "more iterations")
        assert await runs_ray(bed, healthy)
    await until(lambda: is_ready(bed), "all nodes are ready", timeout=120, every=1)
    why = await bed.shoal("why c.yaml")
    await bed.write(min_workers=0)
    await bed.up()
    drains = [line for line in why.stdout.splitlines() if " drain " in line]
    assert not [line for line in drains if "max_workers" in line]


@pytest.mark.long
async def test_an_unreachable_worker_costs_no_other_node_while_both_work(bed: Bed) -> None:
    # A task that Ray sends to a node that just ends for being idle is pending nowhere for a while,
    # and so not in the demand: https://github.com/ray-project/ray/issues/63405
    await until(lambda: _released(bed), "the workers of earlier tests are gone")
    job = await bed.laptop.popen("exec shoal exec c.yaml 'python code/hold.py 2'")
    root = bed.head.root()
    await until((root / "tmp/held-2").exists, "both nodes work", timeout=180)
    log = root / "home/ubuntu/.shoal/controller/controller.log"
    healthy, lost = bed.workers
    raylet = await bed.read(healthy, "pgrep -x raylet")
    noticed = f"host {lost.address} is unreachable"
    before = log.read_text().count(noticed)
    async with lost.cut_off():
        await until(lambda: log.read_text().count(noticed) > before, "it is noticed", timeout=60)
        assert await bed.read(healthy, "pgrep -x raylet") == raylet
    (root / "tmp/release").touch()
    done = await job.finish(timeout=120)
    assert "all done" in done.stdout, done.stderr


async def is_ready(bed: Bed) -> bool:
    return (await bed.shoal("status c.yaml")).code == 0


def _released(bed: Bed) -> bool:
    return not any((w.root() / "var/tmp/shoal-owner").exists() for w in bed.workers)
