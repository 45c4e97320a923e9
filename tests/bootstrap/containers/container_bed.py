"""A cluster of containers: hosts with a container runtime each, and a laptop with `shoal`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_runtimes import OPTIONS, Runtime
from tests.providers.local.ssh_bed import QUICK_START, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

# An image with a normal user and one with root.
USER_IMAGE, ROOT_IMAGE = "gpu:1", "cpu:1"
DOCKER = {
    "head_image": USER_IMAGE,
    "worker_image": ROOT_IMAGE,
    "container_name": "ray_box",
    "pull_before_run": False,
    "run_options": OPTIONS,
}


@dataclass
class SharedCluster:
    """A cluster that the tests of a module share. `is_original` is whether it is up with its
    original settings; a test that changes it must set that to False."""

    bed: Bed
    settings: Mapping[str, Any]
    is_original: bool = False

    async def restore(self) -> Bed:
        """The cluster, up with its original settings."""
        if not self.is_original:
            self.bed.settings.clear()
            await self.bed.write(**self.settings)
            await self.bed.up()
            self.is_original = True
        return self.bed


async def _prepare(host: Host, runtime: Runtime) -> None:
    await container_runtimes.start(host, runtime)
    login = "root" if runtime == "docker" else "ubuntu"
    await container_runtimes.make_image(host, USER_IMAGE, runtime=runtime, user="ray", login=login)
    await container_runtimes.make_image(host, ROOT_IMAGE, runtime=runtime, login=login)


@asynccontextmanager
async def container_bed(
    hosts: Sequence[Runtime] = ("docker", "docker"), **settings: Any
) -> AsyncIterator[Bed]:
    """A test bed whose hosts have these container runtimes, with both images on each."""
    for runtime in set(hosts):
        container_runtimes.require(runtime)
    async with SimCloud() as cloud:
        laptop, *booted = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in hosts))
        await asyncio.gather(*map(_prepare, booted, hosts))
        bed = Bed(cloud, laptop, booted)
        await bed.write(**{**QUICK_START, "docker": DOCKER, **settings})
        yield bed
