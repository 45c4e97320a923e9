"""Workers whose lease expires."""

from __future__ import annotations

import pytest

from tests.polling import until
from tests.providers.local.ssh_bed import Bed

pytestmark = pytest.mark.simcloud


async def test_a_worker_that_loses_its_head_leaves_the_cluster(bed: Bed) -> None:
    await bed.write(shoal={"lease": "4s"})
    await bed.up()
    first, second = bed.workers
    await bed.head.kill()

    async def has_left() -> bool:
        left = "pgrep -x raylet; cat /var/tmp/shoal-owner 2>/dev/null; true"
        return await bed.read(first, left) == ""

    await until(has_left, "the worker's Ray and its claim are gone", timeout=90, every=0.5)
    assert await bed.read(first, "pgrep -f '[d]ev/tcp' || true") == "", "the lease agent ended"
    assert await bed.read(second, "uptime"), "a listed host is not powered off"
