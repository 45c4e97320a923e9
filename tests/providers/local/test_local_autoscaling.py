"""Machines of one's own, used when there is work and released when there is none, with the laptop
switched off. One cluster, used by the tests in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.polling import until
from tests.providers.local.ssh_bed import USE_OUR_RAY, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
]

ACTORS = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1, resources={"worker": 1})
class Worker:
    def where(self):
        return ray.util.get_node_ip_address()

# Both at once: neither gives up its place before the other has one.
workers = [Worker.remote() for _ in range(2)]
print("done on", len(set(ray.get([worker.where.remote() for worker in workers]))))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sized() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
        bed = Bed(cloud, laptop, hosts)
        await laptop.run("mkdir code; cat > code/actors.py", stdin=ACTORS)
        await bed.write(
            file_mounts={"~/code": "code"},
            setup_commands=[USE_OUR_RAY],
            min_workers=0,
            max_workers=2,
            idle_timeout_minutes=0.1,
            available_node_types={"local.cluster.node": {"resources": {"CPU": 1, "worker": 1}}},
            shoal={"hosts": {hosts[0].address: {"resources": {"CPU": 0, "worker": 0}}}},
        )
        events = await bed.up()
        assert [e for e in events if e["event"] == "warning"] == []
        yield bed


async def runs_ray(bed: Bed, host: Host) -> bool:
    return await bed.read(host, "pgrep -x raylet || true") != ""


async def test_the_laptop_can_be_off_while_the_cluster_grows_and_shrinks(sized: Bed) -> None:
    job = await sized.laptop.popen(
        "exec shoal exec c.yaml 'nohup python code/actors.py > out.txt 2>&1 &'"
    )
    await job.finish()
    out = sized.head.root() / "home/ubuntu/out.txt"
    async with sized.laptop.cut_off():
        await until(lambda: "done on 2" in out.read_text(), "the actors have run", timeout=180)
        for worker in sized.workers:
            code = worker.root() / "home/ubuntu/code"
            assert (code / "actors.py").exists(), "files come from the head"
        await until(lambda: _released(sized), "both machines are released", timeout=120)
        for worker in sized.workers:
            assert not await runs_ray(sized, worker)


async def test_the_controller_runs_from_what_was_sent_to_the_head(sized: Bed) -> None:
    printed = await sized.read(
        sized.head, "tr '\\0' '\\n' < /proc/$(cat ~/.shoal/controller/controller.lock)/environ"
    )
    assert "PYTHONPATH=/home/ubuntu/.shoal/lib/" in printed


async def test_the_head_is_told_by_which_keys_the_laptop_knows_the_machines(sized: Bed) -> None:
    config = sized.head.root() / "home/ubuntu/.shoal/controller/config.json"
    told = json.loads(config.read_text())["host_keys"]
    kinds = {address: [" ".join(key.split()[:2]) for key in keys] for address, keys in told.items()}
    real = {h.address: [" ".join(h.machine.host_key.public.split()[:2])] for h in sized.hosts}
    assert kinds == real


async def test_a_released_machine_rejoins(sized: Bed) -> None:
    done = await sized.shoal("exec c.yaml 'python code/actors.py'", timeout=240)
    assert "done on 2" in done.stdout, done.stderr


async def test_a_rebooted_machine_comes_back_by_itself_when_it_is_needed(sized: Bed) -> None:
    await sized.workers[0].reboot()
    done = await sized.shoal("exec c.yaml 'python code/actors.py'", timeout=240)
    assert "done on 2" in done.stdout, done.stderr


async def test_down_ends_the_controller_too(sized: Bed) -> None:
    done = await sized.shoal("down c.yaml --yes")
    assert done.code == 0, done.stderr
    for host in sized.hosts:
        left = "ls -d ~/.shoal 2>/dev/null; pgrep -f '[s]hoal.controller|[r]aylet'; true"
        assert await sized.read(host, left) == ""


def _released(bed: Bed) -> bool:
    return not any((w.root() / "var/tmp/shoal-owner").exists() for w in bed.workers)
