"""Rootless podman: the lifecycle of a node, on one host."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_bed import (
    DOCKER,
    USER_IMAGE,
    SharedCluster,
    container_bed,
)
from tests.bootstrap.containers.container_runtimes import HOME, REGISTRY
from tests.polling import until
from tests.providers.local.ssh_bed import Bed, actions

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[SharedCluster]:
    async with container_bed(
        ["podman"],
        docker={**DOCKER, "use_podman": True},
        setup_commands=["id -un >> ~/set_up; cat ~/code/hello.txt"],
        file_mounts={"~/code": "code"},
    ) as bed:
        await bed.laptop.run("mkdir code; echo hello > code/hello.txt")
        yield SharedCluster(bed, dict(bed.settings))


@pytest_asyncio.fixture(loop_scope="module")
async def bed(cluster: SharedCluster) -> Bed:
    """The cluster with its original settings."""
    return await cluster.restore()


@pytest_asyncio.fixture(loop_scope="module")
async def changing_bed(cluster: SharedCluster) -> Bed:
    """The cluster, for a test that changes its settings or ends it."""
    bed = await cluster.restore()
    cluster.is_original = False
    return bed


async def test_commands_run_and_files_are_inside_the_container(bed: Bed) -> None:
    done = await bed.shoal("exec c.yaml 'id -un; pwd; cat code/hello.txt set_up'")
    assert done.stdout == f"ray\n{HOME}\nhello\nray\n", done.stderr
    assert (await bed.shoal("exec c.yaml --run-env host 'id -un'")).stdout == "ubuntu\n"
    assert (await bed.shoal("rsync-down c.yaml set_up .")).code == 0
    assert (await bed.laptop.run("cat set_up")).stdout == "ray\n"


async def test_losing_a_terminal_ends_its_processes(bed: Bed) -> None:
    lost = await bed.laptop.popen("exec script -qec \"shoal exec c.yaml 'sleep 4321'\" /dev/null")

    async def sleeps() -> bool:
        return await bed.read(bed.head, "pgrep -f [s]leep.4321 || true") != ""

    async def ended() -> bool:
        return not await sleeps()

    await until(sleeps, "the command runs", timeout=90, every=0.5)
    await bed.laptop.run("pkill -KILL ssh")
    await until(ended, "the processes of the lost terminal have ended", timeout=90, every=0.5)
    await lost.finish()


async def test_stopped_container_is_restarted(bed: Bed) -> None:
    assert actions(await bed.up()) == []
    before = await bed.read(bed.head, "podman ps -q")
    await bed.read(bed.head, "podman kill ray_box")
    done = await bed.shoal("exec c.yaml true")
    assert done.code == 6
    assert "the container ray_box is not running" in done.stderr and "shoal up" in done.stderr
    assert actions(await bed.up()) == [("start", "head")]
    assert await bed.read(bed.head, "podman ps -q") == before


async def test_image_of_a_private_registry_is_pulled_if_it_fits(changing_bed: Bed) -> None:
    bed = changing_bed
    await container_runtimes.start_registry(bed.head, "me:secret")
    trust = "mkdir -p ~/.config/containers && cp -r /etc/docker/certs.d ~/.config/containers/"
    await bed.read(bed.head, trust)
    await bed.write(shoal={"registry": {"server": REGISTRY, "username": "me"}})

    async def up(image: str) -> str:
        docker = {**DOCKER, "use_podman": True, "image": image}
        await bed.write(docker={k: v for k, v in docker.items() if k != "head_image"})
        env = {"SHOAL_REGISTRY_PASSWORD": "secret"}
        done = await bed.laptop.run("shoal up c.yaml --yes", env=env)
        return "" if done.code == 0 else done.stderr

    assert "does not fit on the host's disk" in await up(f"{REGISTRY}/huge:1")
    assert await up(f"{REGISTRY}/box:1") == ""
    assert (await bed.shoal("exec c.yaml 'id -un'")).stdout == "root\n"
    assert await bed.read(bed.head, "ls -a ~/.shoal | grep login || true") == ""


async def test_down_removes_the_container_and_leaves_the_images(changing_bed: Bed) -> None:
    bed = changing_bed
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0, done.stderr
    assert await bed.read(bed.head, "podman ps -aq") == ""
    assert await bed.read(bed.head, f"podman images -q localhost/{USER_IMAGE} | wc -l") == "1"
