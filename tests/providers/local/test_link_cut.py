"""A link to one of two workers is cut for a minute: long enough for Ray to declare the node dead.
`tests/controller/test_hosts.py` has the same without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from shoal.core.clock import SystemClock
from tests.polling import until
from tests.providers.local.ssh_bed import HOLD_NODES, USE_OUR_RAY, Bed
from tests.simcloud.cloud import SimCloud

pytestmark = [
    pytest.mark.simcloud,
    pytest.mark.ray,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
]

MINUTE = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
        bed = Bed(cloud, laptop, hosts)
        await laptop.run("mkdir code; cat > code/hold.py", stdin=HOLD_NODES)
        await bed.write(
            file_mounts={"~/code": "code"},
            setup_commands=[USE_OUR_RAY],
            min_workers=2,
            shoal={"hosts": {hosts[0].address: {"resources": {"CPU": 0}}}},
        )
        await bed.up()
        yield bed
        done = await bed.shoal("down c.yaml --yes")
        assert done.code == 0, done.stderr


@pytest.mark.parametrize("is_working", [False, True], ids=["idle", "working"])
async def test_a_minute_without_a_link_costs_no_other_node(bed: Bed, is_working: bool) -> None:
    healthy, lost = bed.workers
    raylet = await bed.read(healthy, "pgrep -x raylet")
    job = None
    if is_working:
        job = await bed.laptop.popen("exec shoal exec c.yaml 'python code/hold.py 2'")
        held = bed.head.root() / "tmp/held-2"
        await until(held.exists, "both workers work", timeout=120)
    async with lost.cut_off():
        await SystemClock().sleep(MINUTE)
        assert await bed.read(healthy, "pgrep -x raylet") == raylet
    await until(lambda: _is_ready(bed), "all nodes are ready", timeout=240, every=2)
    if job is not None:
        (bed.head.root() / "tmp/release").touch()
        done = await job.finish(timeout=240)
        assert "all done" in done.stdout, done.stderr
        (bed.head.root() / "tmp/release").unlink()
    assert await bed.read(healthy, "pgrep -x raylet") == raylet, "it was never restarted"
    why = (await bed.shoal("why c.yaml")).stdout
    assert " drain " not in why
    assert "more than max_workers" not in why


async def _is_ready(bed: Bed) -> bool:
    return (await bed.shoal("status c.yaml")).code == 0
