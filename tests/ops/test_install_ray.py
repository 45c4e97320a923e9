"""Installing Ray on the machines of a nodes file, with a small package in place of Ray. The tests
share the machines; each says which Ray is installed when it starts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.ops.package_index import PackageIndex, make_wheel
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

DIRECTORY = "~/it's here"  # needs quoting in every shell command


@dataclass
class InstallBed:
    """Two machines, a laptop with a nodes file, and a package index."""

    laptop: Host
    hosts: list[Host]
    index: PackageIndex

    async def call(self, *calls: str) -> Result:
        """Run a program that makes these calls on the cluster, and prints events and errors."""
        lines = [
            "from shoal import InteractiveCluster, ShoalError",
            "cluster = InteractiveCluster('nodes.txt', username='ubuntu',",
            f"    installation_directory={DIRECTORY!r}, on_event=print)",
            "try:",
            *(f"    {call}" for call in calls),
            "except ShoalError as error:",
            "    print('error:', error.what, '|', error.why, '|', error.fix)",
        ]
        return await self.laptop.run("python -", stdin="\n".join(lines), timeout=120)

    async def without_ray(self) -> None:
        """Remove what was installed, and offer Ray 1.0 only."""
        self.index.remove("ray", "2.0")
        for host in self.hosts:
            await host.run(f'rm -rf "$HOME/{DIRECTORY[2:]}"', user="ubuntu")

    async def with_ray(self, version: str) -> None:
        """Have this version on all machines, and offer Ray 1.0 only."""
        self.index.remove("ray", "2.0")
        if await self.versions() != [version] * len(self.hosts):
            done = await self.call(f"cluster.install_ray({version!r})")
            assert f"version={version!r}, nodes=2" in done.stdout, done.stdout

    async def versions(self) -> list[str]:
        program = 'python -c "import ray; print(ray.__version__)"'
        program = f'. "$HOME/{DIRECTORY[2:]}/setup-env.sh"; {program}'
        return [
            (await host.run(program, user="ubuntu")).stdout.strip() or "none" for host in self.hosts
        ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InstallBed]:
    folder = tmp_path_factory.mktemp("wheels")
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(2)))
        index = await PackageIndex.open(cloud)
        index.add(make_wheel(folder, "ray", "1.0", needs="paddle"))
        index.add(make_wheel(folder, "paddle", "3.1"))
        await index.configure(*hosts)
        await laptop.run("cat > nodes.txt", stdin="\n".join(h.address for h in hosts))
        yield InstallBed(laptop, hosts, index)


async def test_start_without_ray_is_an_error(bed: InstallBed) -> None:
    await bed.without_ray()
    done = await bed.call("cluster.start_ray('.')")
    assert "error: Ray is not installed on head, worker-1" in done.stdout
    assert "cluster.install_ray()" in done.stdout


async def test_install_downloads_each_package_once_for_all_machines(bed: InstallBed) -> None:
    await bed.without_ray()
    before = Counter(bed.index.downloads())
    done = await bed.call("cluster.install_ray()")
    assert "RayInstalled(cluster='nodes', version='1.0', nodes=2" in done.stdout, done.stdout
    assert await bed.versions() == ["1.0"] * 2
    assert Counter(bed.index.downloads()) - before == {
        "ray-1.0-py3-none-any.whl": 1,
        "paddle-3.1-py3-none-any.whl": 1,
    }
    assert "Output(node='head', line='Successfully installed" in done.stdout
    for node in ("head", "worker-1"):
        assert f"Output(node='{node}', line='ray version: 1.0'" in done.stdout


async def test_installing_an_installed_version_does_nothing(bed: InstallBed) -> None:
    await bed.with_ray("1.0")
    before = bed.index.downloads()
    done = await bed.call("cluster.install_ray()", "cluster.install_ray('1.0')")
    assert done.stdout.count("Ray 1.0 is installed on all nodes") == 2
    assert bed.index.downloads() == before


@pytest.mark.long
async def test_updating_to_the_installed_version_does_nothing(bed: InstallBed) -> None:
    await bed.with_ray("1.0")
    done = await bed.call("cluster.update_ray()")
    assert "Ray 1.0 is the latest" in done.stdout, done.stdout + done.stderr
    assert await bed.versions() == ["1.0"] * 2


@pytest.mark.long
async def test_when_one_machine_fails_none_is_updated(bed: InstallBed, tmp_path: Path) -> None:
    await bed.without_ray()
    await bed.with_ray("1.0")
    bed.index.add(make_wheel(tmp_path, "ray", "2.0", needs="paddle"))
    failing = bed.hosts[1]
    envs = f"/home/ubuntu/{DIRECTORY[2:]}/ray-envs"
    await failing.run(f'chown root "{envs}" && chmod 755 "{envs}"', user="root")
    done = await bed.call("cluster.update_ray()")
    assert "error: could not install Ray on 1 of 2 nodes: worker-1" in done.stdout
    assert "no node was changed" in done.stdout
    left = await bed.hosts[0].run(f'ls "{envs}"', user="ubuntu")
    assert len(left.stdout.split()) == 1, "the failed installation is removed"
    assert await bed.versions() == ["1.0"] * 2
    await failing.run(f'chown ubuntu "{envs}"', user="root")


async def test_update_installs_a_newer_ray_on_all_machines(bed: InstallBed, tmp_path: Path) -> None:
    await bed.with_ray("1.0")
    bed.index.add(make_wheel(tmp_path, "ray", "2.0", needs="paddle"))
    done = await bed.call("cluster.update_ray()")
    assert "RayInstalled(cluster='nodes', version='2.0', nodes=2" in done.stdout
    assert await bed.versions() == ["2.0"] * 2


@pytest.mark.long
async def test_a_local_wheel_can_be_installed(bed: InstallBed, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "ray", "2.1.dev0", needs="paddle")
    (bed.laptop.root() / "home/me" / wheel.name).write_bytes(wheel.read_bytes())
    done = await bed.call(f"cluster.install_ray(wheel={wheel.name!r})")
    assert "version='2.1.dev0', nodes=2" in done.stdout, done.stdout + done.stderr
    assert await bed.versions() == ["2.1.dev0"] * 2


@pytest.mark.long
async def test_different_ray_versions_are_reported(bed: InstallBed, tmp_path: Path) -> None:
    """By start_ray(), `shoal status` and `shoal doctor`."""
    await bed.without_ray()
    await bed.with_ray("1.0")
    bed.index.add(make_wheel(tmp_path, "ray", "2.0", needs="paddle"))
    await bed.call("cluster.update_ray()")
    home = bed.hosts[1].root() / "home/ubuntu" / DIRECTORY[2:]
    older = min(path.name for path in (home / "ray-envs").iterdir())
    (home / "ray").unlink()
    (home / "ray").symlink_to(f"ray-envs/{older}")
    done = await bed.call("cluster.start_ray('.')")
    assert "error: the nodes have different versions of Ray" in done.stdout
    assert "worker-1 has 1.0" in done.stdout
    assert "cluster.update_ray()" in done.stdout
    status = await bed.laptop.run("shoal status nodes")
    assert "it has Ray 1.0, the head has 2.0" in status.stdout, status.stderr
    doctor = await bed.laptop.run("shoal doctor nodes")
    assert "worker-1 cannot join" in doctor.stdout, doctor.stderr
    assert "it has Ray 1.0, the head has 2.0" in doctor.stdout
    assert doctor.code == 2


async def test_the_error_for_an_unknown_version_has_pips_output(bed: InstallBed) -> None:
    done = await bed.call("cluster.install_ray('9.9')")
    assert "could not install Ray" in done.stdout
    assert "No matching distribution found for ray" in done.stdout


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("install_ray(wheel='missing.whl')", "missing.whl does not exist"),
        ("install_ray('1.0', git='main')", "more than one Ray source"),
        ("start_ray('missing')", "missing is not a directory"),
        ("start_ray('.', num_workers_per_node=0)", "invalid number of workers per node: 0"),
    ],
)
async def test_invalid_arguments_are_errors(bed: InstallBed, call: str, message: str) -> None:
    done = await bed.call(f"cluster.{call}")
    assert message in done.stdout
