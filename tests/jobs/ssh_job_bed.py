"""Hosts whose Ray is in a virtualenv that uv made, a laptop without Ray, and a package index: the
rest of the world is out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.jobs.repository import wheel
from tests.ops.package_index import PackageIndex
from tests.providers.local.ssh_bed import Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.hosts import Host

VENV = "/home/ubuntu/.venv"
_UV = f"{sys.prefix}/bin/uv"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PYTHON = f"{sys.base_prefix}/bin/{_VERSION}"
# What a virtualenv of uv does not have, and the project itself.
_ABSENT = "pip|pip-*|uv|uv-*|setuptools*|pkg_resources|_distutils_hack|shoal*|adaptdl*|*.pth"
_RAY = "import sys\nfrom ray.scripts.scripts import main\nsys.exit(main())"
# The environment variables of commands on the laptop.
NO_RAY = {"PYTHONPATH": "/home/me/no-ray"}
SHELLS = ("/usr/bin/zsh", "/usr/bin/fish", "/bin/dash")
# Ray runs on hosts with little memory here.
RAY_OPTIONS = "--disable-usage-stats --object-store-memory=100000000"


def install_ray(directory: str = VENV) -> str:
    """Shell text that makes a virtualenv with uv, and has the packages of the tests in it as if uv
    had installed them."""
    packages = f"{directory}/lib/{_VERSION}/site-packages"
    return f"""
{_UV} venv --quiet --offline --python {_PYTHON} {directory}
for each in {sysconfig.get_path("purelib")}/*; do
  case ${{each##*/}} in {_ABSENT}) ;; *) ln -s "$each" {packages}/ ;; esac
done
printf '%s\\n' '#!{directory}/bin/python' {shlex.quote(_RAY)} > {directory}/bin/ray
chmod +x {directory}/bin/ray
"""


def start_commands(directory: str = VENV) -> dict[str, Any]:
    ray = f"{directory}/bin/ray"
    return {
        "head_start_ray_commands": [
            f"{ray} stop", f"{ray} start --head --port=6379 {RAY_OPTIONS}",
        ],
        "worker_start_ray_commands": [
            f"{ray} stop", f"{ray} start --address=$RAY_HEAD_IP:6379 {RAY_OPTIONS}",
        ],
    }  # fmt: skip


async def hide_ray(laptop: Host) -> None:
    """Let every import of Ray on the laptop fail."""
    text = "raise ImportError('this laptop has no Ray')\n"
    (await laptop.run("mkdir -p ~/no-ray && cat > ~/no-ray/ray.py", stdin=text)).require("hiding")


async def package_index(cloud: SimCloud) -> PackageIndex:
    """An index with the package `shoaltest`."""
    index = await PackageIndex.open(cloud)
    with tempfile.TemporaryDirectory() as directory:
        index.add(wheel(Path(directory)))
    return index


@dataclass
class JobBed(Bed):
    """Commands on the laptop cannot import Ray."""

    index: PackageIndex | None = None

    async def laptop_run(self, command: str, *, cwd: str = "code", timeout: float = 300) -> Result:
        return await self.laptop.run(f"cd ~/{cwd} && {command}", env=NO_RAY, timeout=timeout)


async def prepare(host: Host, shell: str) -> None:
    await host.run(f"usermod -s {shell} ubuntu")
    (await host.run(install_ray(), user="ubuntu")).require("installing Ray")


@contextlib.asynccontextmanager
async def job_bed(workers: int = 2, **settings: Any) -> AsyncIterator[JobBed]:
    """A cluster file `c.yaml` for hosts with different login shells. The head has uv; the workers
    have neither uv nor pip."""
    async with SimCloud() as cloud:
        laptop, index = await cloud.laptop(), await package_index(cloud)
        hosts = [await cloud.boot(ray_on_path=False) for _ in range(1 + workers)]
        await asyncio.gather(*map(prepare, hosts, itertools.cycle(SHELLS)))
        head_uv = f"mkdir -p ~/.local/bin && ln -s {_UV} ~/.local/bin/uv"
        await hosts[0].run(head_uv, user="ubuntu")
        await hide_ray(laptop)
        bed = JobBed(cloud, laptop, hosts, index=index)
        await bed.write(**start_commands(), **settings)
        yield bed
