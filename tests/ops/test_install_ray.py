"""Installing Ray on a list of machines, with a package that stands in for it."""

from __future__ import annotations

import asyncio
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

DIRECTORY = "~/it's here"  # no shell on the way may trip over it


@dataclass
class Session:
    """Two machines, a laptop with their list, and an index of packages."""

    laptop: Host
    hosts: list[Host]
    index: PackageIndex

    async def call(self, *calls: str) -> Result:
        """What a program prints that makes these calls on the cluster."""
        lines = [
            "from shoal import InteractiveCluster, ShoalError",
            "cluster = InteractiveCluster('nodes.txt', username='ubuntu',",
            f"    installation_directory={DIRECTORY!r}, on_event=print)",
            "try:",
            *(f"    {call}" for call in calls),
            "except ShoalError as error:",
            "    print('refused:', error.what, '|', error.why, '|', error.fix)",
        ]
        return await self.laptop.run("python -", stdin="\n".join(lines), timeout=120)

    async def versions(self) -> list[str]:
        program = 'python -c "import ray; print(ray.__version__)"'
        program = f'. "$HOME/{DIRECTORY[2:]}/setup-env.sh"; {program}'
        return [
            (await host.run(program, user="ubuntu")).stdout.strip() or "none" for host in self.hosts
        ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    folder = tmp_path_factory.mktemp("wheels")
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(2)))
        index = await PackageIndex.open(cloud)
        index.add(make_wheel(folder, "ray", "1.0", needs="paddle"))
        index.add(make_wheel(folder, "paddle", "3.1"))
        await index.serves(*hosts)
        await laptop.run("cat > nodes.txt", stdin="\n".join(h.address for h in hosts))
        yield Session(laptop, hosts, index)


async def test_a_cluster_without_ray_is_not_started(session: Session) -> None:
    done = await session.call("cluster.start_ray('.')")
    assert "refused: Ray is not installed on head, worker-1" in done.stdout
    assert "cluster.install_ray()" in done.stdout


async def test_every_machine_gets_ray_and_each_package_is_fetched_once(session: Session) -> None:
    done = await session.call("cluster.install_ray()")
    assert "RayInstalled(cluster='nodes', version='1.0', nodes=2" in done.stdout, done.stdout
    assert await session.versions() == ["1.0"] * 2
    assert session.index.fetched() == {
        "ray-1.0-py3-none-any.whl": 1,
        "paddle-3.1-py3-none-any.whl": 1,
    }
    assert "Output(node='head', line='Successfully installed" in done.stdout
    for node in ("head", "worker-1"):
        assert f"Output(node='{node}', line='ray version: 1.0'" in done.stdout


async def test_installing_what_is_there_does_nothing(session: Session) -> None:
    before = session.index.fetched()
    done = await session.call("cluster.install_ray()", "cluster.install_ray('1.0')")
    assert done.stdout.count("Ray 1.0 is installed on all nodes") == 2
    assert session.index.fetched() == before


async def test_updating_to_what_is_there_changes_nothing(session: Session) -> None:
    done = await session.call("cluster.update_ray()")
    assert "Ray 1.0 is the newest" in done.stdout, done.stdout + done.stderr
    assert await session.versions() == ["1.0"] * 2


async def test_when_one_machine_fails_none_moves(session: Session, tmp_path: Path) -> None:
    session.index.add(make_wheel(tmp_path, "ray", "2.0", needs="paddle"))
    sick = session.hosts[1]
    envs = f"/home/ubuntu/{DIRECTORY[2:]}/ray-envs"
    await sick.run(f'chown root "{envs}" && chmod 755 "{envs}"', user="root")
    done = await session.call("cluster.update_ray()")
    assert "refused: Ray could not be installed on 1 of 2 nodes: worker-1" in done.stdout
    assert "no node was changed" in done.stdout
    left = await session.hosts[0].run(f'ls "{envs}"', user="ubuntu")
    assert len(left.stdout.split()) == 1, "what was installed in vain takes no room"
    assert await session.versions() == ["1.0"] * 2
    await sick.run(f'chown ubuntu "{envs}"', user="root")


async def test_all_machines_move_to_a_newer_ray_together(session: Session, tmp_path: Path) -> None:
    session.index.add(make_wheel(tmp_path, "ray", "2.0", needs="paddle"))
    done = await session.call("cluster.update_ray()")
    assert "RayInstalled(cluster='nodes', version='2.0', nodes=2" in done.stdout
    assert await session.versions() == ["2.0"] * 2


async def test_a_wheel_from_here_can_be_installed(session: Session, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "ray", "2.1.dev0", needs="paddle")
    (session.laptop.root() / "home/me" / wheel.name).write_bytes(wheel.read_bytes())
    done = await session.call(f"cluster.install_ray(wheel={wheel.name!r})")
    assert "version='2.1.dev0', nodes=2" in done.stdout, done.stdout + done.stderr
    assert await session.versions() == ["2.1.dev0"] * 2


async def test_machines_with_different_rays_are_not_started(session: Session) -> None:
    odd = session.hosts[1]
    home = odd.root() / "home/ubuntu" / DIRECTORY[2:]
    older = min(path.name for path in (home / "ray-envs").iterdir())
    (home / "ray").unlink()
    (home / "ray").symlink_to(f"ray-envs/{older}")
    done = await session.call("cluster.start_ray('.')")
    assert "refused: the nodes do not have the same Ray" in done.stdout
    assert "worker-1 has 2.0" in done.stdout
    assert "cluster.update_ray()" in done.stdout


async def test_status_tells_which_machine_has_another_ray(session: Session) -> None:
    done = await session.laptop.run("shoal status nodes")
    assert "it has Ray 2.0, the head has 2.1.dev0" in done.stdout, done.stderr


async def test_doctor_tells_which_machine_has_another_ray(session: Session) -> None:
    done = await session.laptop.run("shoal doctor nodes")
    assert "worker-1 cannot join" in done.stdout, done.stderr
    assert "it has Ray 2.0, the head has 2.1.dev0" in done.stdout
    assert done.code == 2


async def test_a_version_that_does_not_exist_is_told_with_what_pip_said(session: Session) -> None:
    done = await session.call("cluster.install_ray('9.9')")
    assert "Ray could not be installed" in done.stdout
    assert "No matching distribution found for ray" in done.stdout


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("install_ray(wheel='nowhere.whl')", "nowhere.whl does not exist"),
        ("install_ray('1.0', git='main')", "not several"),
        ("start_ray('nowhere')", "nowhere is not a directory"),
        ("start_ray('.', num_workers_per_node=0)", "0 workers a node are too few"),
    ],
)
async def test_what_cannot_be_meant_is_refused(session: Session, call: str, message: str) -> None:
    done = await session.call(f"cluster.{call}")
    assert message in done.stdout
