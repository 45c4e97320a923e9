from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.providers.local.ssh_bed import QUICK_START, Bed
from tests.simcloud.cloud import SimCloud


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """Three hosts and a laptop, with a stand-in for Ray."""
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
        bed = Bed(cloud, laptop, hosts)
        await bed.write(**QUICK_START)
        yield bed
