"""The default command that installs Ray on a bare host."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.ray_runtime.install_command import install_ray_command
from tests.ops.package_index import PackageIndex, make_wheel
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.hosts import Host

pytestmark = pytest.mark.simcloud

BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin"}  # without the Ray of simulated hosts


async def shell(host: Host, command: str) -> Result:
    """Run a command in a shell that reads the dotfiles first."""
    done = await host.run(["bash", "-i", "-c", command], user="ubuntu", env=BARE, timeout=120)
    return done.require(command)


@pytest.mark.long
async def test_ray_is_installed_once_and_found_by_the_next_shell(
    cloud: SimCloud, tmp_path: Path
) -> None:
    host = await cloud.boot()
    index = await PackageIndex.open(cloud)
    for version in ("1.0", "2.0"):
        index.add(make_wheel(tmp_path, "ray", version, needs="paddle"))
    index.add(make_wheel(tmp_path, "paddle", "3.1"))
    await index.configure(host)

    await shell(host, install_ray_command("1.0"))
    assert (await shell(host, "command -v ray")).stdout.strip() == "/home/ubuntu/.shoal/ray/bin/ray"
    print_version = "~/.shoal/ray/bin/python -c 'import ray, paddle; print(ray.__version__)'"
    assert (await shell(host, print_version)).stdout.strip() == "1.0"

    await shell(host, install_ray_command("1.0"))
    assert index.downloads()["ray-1.0-py3-none-any.whl"] == 1

    await shell(host, install_ray_command("2.0"))
    assert (await shell(host, print_version)).stdout.strip() == "2.0"
