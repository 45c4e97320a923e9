"""Real Ray in containers: a head as a normal user, a worker as root, and the controller inside."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.bootstrap.containers.container_bed import container_bed
from tests.polling import until
from tests.providers.local.ssh_bed import Bed

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
]

# Needs a worker that is not launched yet, and prints the address and user of both tasks.
ACROSS = """
import os, ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
def where():
    inside = os.path.exists("/etc/hostname") and os.path.ismount("/usr")
    return ray.util.get_node_ip_address(), os.getuid(), inside

head = where.options(num_cpus=0, resources={"head": 1})
worker = where.options(resources={"worker": 1})
print(ray.get([head.remote(), worker.remote()]))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real() -> AsyncIterator[Bed]:
    async with container_bed(
        head_start_ray_commands=["ray stop", "ray start --head --port=6379"],
        worker_start_ray_commands=["ray stop", "ray start --address=$RAY_HEAD_IP:6379"],
        file_mounts={"~/code": "code"},
        min_workers=0,
        max_workers=1,
        idle_timeout_minutes=0.1,
        available_node_types={"local.cluster.node": {"resources": {"CPU": 1, "worker": 1}}},
    ) as bed:
        resources = {"CPU": 0, "worker": 0, "head": 1}
        hosts = {bed.head.address: {"resources": resources}}
        await bed.write(shoal={"controller": True, "hosts": hosts})
        await bed.laptop.run("mkdir code; cat > code/across.py", stdin=ACROSS)
        events = await bed.up()
        assert [e for e in events if e["event"] == "warning"] == []
        yield bed


async def test_controller_in_the_heads_container_adds_and_removes_a_worker_in_another(
    real: Bed,
) -> None:
    done = await real.shoal("exec c.yaml 'python code/across.py'", timeout=120)
    assert done.code == 0, done.stderr
    head, worker = (host.address for host in real.hosts)
    assert done.stdout.strip() == str([(head, 1234, True), (worker, 0, True)])

    async def is_complete() -> bool:
        return (await real.shoal("status c.yaml")).code == 0

    await until(is_complete, "status is complete, with or without the worker", every=1)

    async def is_clean() -> bool:
        output = await real.read(real.workers[0], "docker ps -aq; ls -d ~/.shoal || true")
        return output == ""

    await until(is_clean, "the idle worker is released without a trace", timeout=60)
    assert (await real.shoal("down c.yaml --yes")).code == 0
    assert await real.read(real.head, "docker ps -aq") == ""
