"""A cluster of containers: hosts with an engine each, and a laptop with the real `shoal` on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_runtimes import OPTIONS, Engine
from tests.providers.local.ssh_bed import QUICK_START, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

# As a user image and a root image: what the seeds call a GPU image and a CPU image.
USER_IMAGE, ROOT_IMAGE = "gpu:1", "cpu:1"
DOCKER = {
    "head_image": USER_IMAGE,
    "worker_image": ROOT_IMAGE,
    "container_name": "ray_box",
    "pull_before_run": False,
    "run_options": OPTIONS,
}


async def _prepare(host: Host, engine: Engine) -> None:
    await container_runtimes.start(host, engine)
    login = "root" if engine == "docker" else "ubuntu"
    await container_runtimes.make_image(host, USER_IMAGE, engine=engine, user="ray", login=login)
    await container_runtimes.make_image(host, ROOT_IMAGE, engine=engine, login=login)


@asynccontextmanager
async def housed(
    hosts: Sequence[Engine] = ("docker", "docker"), **settings: Any
) -> AsyncIterator[Bed]:
    """A bed whose hosts have these engines, with both images on each and a file for them."""
    for engine in set(hosts):
        container_runtimes.require(engine)
    async with SimCloud() as cloud:
        laptop, *booted = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in hosts))
        await asyncio.gather(*map(_prepare, booted, hosts))
        bed = Bed(cloud, laptop, booted)
        await bed.write(**{**QUICK_START, "docker": DOCKER, **settings})
        yield bed
