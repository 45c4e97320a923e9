"""Container errors have what, why and fix: one host for all tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.bootstrap.containers import container_runtimes
from tests.bootstrap.containers.container_bed import DOCKER, OPTIONS, ROOT_IMAGE
from tests.bootstrap.containers.container_runtimes import REGISTRY
from tests.providers.local.ssh_bed import QUICK_START, Bed
from tests.simcloud.cloud import SimCloud
from tests.simcloud.processes import Result

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

PASSWORD = "hunter2 'with' \"quotes\" $x"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def docker_bed() -> AsyncIterator[Bed]:
    """A host with docker, whose user may use it."""
    container_runtimes.require("docker")
    async with SimCloud() as cloud:
        laptop, host = await cloud.laptop(), await cloud.boot()
        bed = Bed(cloud, laptop, [host])
        await container_runtimes.start(host)
        await container_runtimes.make_image(host, ROOT_IMAGE)
        yield bed


@pytest_asyncio.fixture(loop_scope="module")
async def bed(docker_bed: Bed) -> Bed:
    """The host, with the default settings and no cluster on it."""
    docker_bed.settings.clear()
    await docker_bed.write(**QUICK_START)
    return docker_bed


@pytest_asyncio.fixture(loop_scope="module")
async def outside_docker_group(bed: Bed) -> AsyncIterator[None]:
    """The user of the host is not in the group docker. An open SSH connection would keep the
    membership that it began with."""
    end_connections = "pkill -KILL ssh || true"
    await bed.head.run("sed -i 's/^\\(docker:.*:\\).*/\\1/' /etc/group")
    await bed.laptop.run(end_connections)
    yield
    await bed.head.run("usermod -aG docker ubuntu")
    await bed.laptop.run(end_connections)


async def start_private_registry(bed: Bed) -> None:
    """Start a registry with a login, whose image the host does not have yet."""
    await container_runtimes.start_registry(bed.head, f"me:{PASSWORD}")
    await bed.head.run(f"docker rmi -f {REGISTRY}/box:1")


async def fails(bed: Bed, env: dict[str, str] | None = None, **settings: Any) -> dict[str, Any]:
    """The error of an `up` that must fail, followed by a `down`."""
    await bed.write(**settings)
    done = await bed.laptop.run("shoal up c.yaml --yes --json", env=env)
    assert done.code != 0, done.stdout
    error: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert error["event"] == "error" and error["what"] and error["why"] and error["fix"], error
    gone = await bed.shoal("down c.yaml --yes")
    assert gone.code == 0, gone.stderr
    return error


def box(**settings: Any) -> dict[str, Any]:
    return {"docker": {**DOCKER, "head_image": ROOT_IMAGE, **settings}}


async def test_docker_that_is_not_running(bed: Bed) -> None:
    await container_runtimes.stop_docker(bed.head)
    try:
        error = await fails(bed, **box())
    finally:
        await container_runtimes.start(bed.head)
    assert error["what"] == "docker is not running on the host"
    assert "systemctl start docker" in error["fix"]


async def test_user_who_is_not_in_the_docker_group(bed: Bed, outside_docker_group: None) -> None:
    error = await fails(bed, **box())
    assert error["what"] == "ubuntu may not use docker on the host"
    assert "sudo usermod -aG docker ubuntu" in error["fix"]


async def test_user_added_to_the_docker_group_during_up_needs_no_second_up(
    bed: Bed, outside_docker_group: None
) -> None:
    await bed.write(**box(), initialization_commands=["sudo usermod -aG docker ubuntu"])
    await bed.up()
    assert (await bed.shoal("down c.yaml --yes")).code == 0


async def test_docker_that_is_not_installed(bed: Bed) -> None:
    await bed.head.run("for path in $(which -a docker); do mv $path $path.away; done")
    restore = "for path in $(which -a docker.away); do mv $path ${path%.away}; done"
    try:
        error = await fails(bed, **box())
    finally:
        await bed.head.run(restore)
    assert error["what"] == "docker is not installed on the host"
    assert "apt-get install -y docker.io" in error["fix"]


async def test_files_reach_an_image_without_rsync(bed: Bed) -> None:
    await bed.laptop.run("mkdir 'a tree'; echo one > 'a tree/f'; ln -s f 'a tree/link'; echo 2 > g")
    mounts = {"~/tree": "a tree", "~/new name": "g", "/opt/dir/": "g"}
    await bed.head.run("mkdir /opt/few; cp -s /usr/bin/* /opt/few; rm /opt/few/rsync")
    await container_runtimes.make_image(bed.head, "few:1", user="ray", ENV="PATH=/opt/few")
    few = box(head_image="few:1", run_options=[*OPTIONS, "-v /opt/few:/opt/few:ro"])
    await bed.write(**few, file_mounts=mounts)
    await bed.up()
    done = await bed.shoal("exec c.yaml 'cat tree/link \"new name\" /opt/dir/g; stat -c %U tree/f'")
    assert done.stdout == "one\n2\n2\nray\n", done.stderr
    assert await bed.read(bed.head, "ls .shoal/staged") == ""
    assert (await bed.shoal("down c.yaml --yes")).code == 0


async def test_container_that_exits_at_once(bed: Bed) -> None:
    await container_runtimes.make_image(
        bed.head, "ends:1", ENTRYPOINT='["sh", "-c", "echo goodbye; exit 3"]'
    )
    error = await fails(bed, **box(head_image="ends:1"))
    assert error["what"] == "container ray_box exited at once with code 3"
    assert error["why"] == "goodbye"


async def test_options_that_docker_rejects(bed: Bed) -> None:
    error = await fails(bed, **box(run_options=["--no-such-option"]))
    assert error["what"] == "docker rejects docker.run_options"
    assert "--no-such-option" in error["why"]


async def test_image_without_a_shell(bed: Bed) -> None:
    error = await fails(bed, **box(run_options=[]))
    assert error["what"] == f"image {ROOT_IMAGE} has no bash"


async def test_name_of_a_container_that_shoal_did_not_create(bed: Bed) -> None:
    run = f"docker run -d -it --name ray_box --net=host {' '.join(OPTIONS)} {ROOT_IMAGE} bash"
    other = await bed.read(bed.head, run)
    error = await fails(bed, **box())
    assert error["what"] == "the host has a container ray_box that Shoal did not create"
    assert await bed.read(bed.head, "docker ps -q --no-trunc") == other
    await bed.read(bed.head, "docker rm -f ray_box")


async def test_host_taken_from_another_cluster_loses_its_container(bed: Bed) -> None:
    await bed.write(**box())
    await bed.up()
    before = await bed.read(bed.head, "docker ps -aq")
    await bed.write(cluster_name="other")
    assert (await bed.shoal("up c.yaml --yes")).code != 0
    await bed.up("--force")
    after = await bed.read(bed.head, "docker ps -aq")
    assert len(after.split()) == 1 and after != before
    assert (await bed.shoal("down c.yaml --yes")).code == 0


async def test_wrong_image_name(bed: Bed) -> None:
    await container_runtimes.start_registry(bed.head)
    error = await fails(bed, **box(head_image=f"{REGISTRY}/nosuch:1"))
    assert error["what"] == f"image not found: {REGISTRY}/nosuch:1"
    error = await fails(bed, **box(head_image="Not:A:Name"))
    assert error["what"] == "invalid image name: Not:A:Name"


async def test_image_larger_than_the_disk_is_refused_before_it_is_pulled(bed: Bed) -> None:
    await container_runtimes.start_registry(bed.head)
    image = f"{REGISTRY}/huge:1"
    error = await fails(bed, **box(head_image=image))
    assert error["what"] == f"image {image} does not fit on the host's disk"
    assert "1800.0 GiB" in error["why"]
    assert await bed.read(bed.head, f"docker images -q {image}") == ""


async def test_private_registry_without_a_login(bed: Bed) -> None:
    await start_private_registry(bed)
    error = await fails(bed, **box(head_image=f"{REGISTRY}/box:1"))
    assert error["what"] == f"the registry of {REGISTRY}/box:1 denied access"
    assert "shoal.registry" in error["fix"]


async def test_registry_password_is_left_nowhere(bed: Bed) -> None:
    await start_private_registry(bed)
    login = {"server": REGISTRY, "username": "me", "password_env": "IMAGES"}
    settings = {**box(head_image=f"{REGISTRY}/box:1"), "shoal": {"registry": login}}
    error = await fails(bed, **settings)
    assert error["why"].endswith("the environment variable IMAGES is not set")
    error = await fails(bed, {"IMAGES": "wrong"}, **settings)
    assert error["what"] == f"the registry of {REGISTRY}/box:1 denied access"

    done = await bed.laptop.run("shoal up c.yaml --yes -v", env={"IMAGES": PASSWORD})
    assert done.code == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert await traces(bed, "hunter2") == []
    assert (await bed.shoal("down c.yaml --yes")).code == 0

    command = {**login, "password_command": "cat secret"}
    await bed.laptop.run("cat > secret", stdin=PASSWORD)
    await bed.write(**{**settings, "shoal": {"registry": command}})
    await bed.read(bed.head, f"docker rmi {REGISTRY}/box:1")
    await bed.up()
    assert await traces(bed, "hunter2") == []
    assert (await bed.shoal("down c.yaml --yes")).code == 0


async def traces(bed: Bed, word: str) -> list[str]:
    """Files of the host, and command lines and environments of its processes, with a word."""
    search = (
        "{ find /home /root /tmp /var /etc /run /dev/shm -newer /etc/registry.pem -type f -print0;"
        " printf '%s\\0' /proc/[0-9]*/cmdline /proc/[0-9]*/environ; }"
        f" | xargs -0 grep -laF -e {word} 2>/dev/null"
    )
    result: Result = await bed.head.run(search)
    return [
        line for line in result.stdout.splitlines() if not await _belongs_to_registry(bed, line)
    ]


async def _belongs_to_registry(bed: Bed, path: str) -> bool:
    """Whether this is a file of the registry's process, or of the search itself."""
    if not path.startswith("/proc/"):
        return False
    pid = path.split("/")[2]
    name = (await bed.head.run(f"tr '\\0' ' ' < /proc/{pid}/cmdline")).stdout
    return not name or "tests.bootstrap.containers.image_registry" in name or "grep" in name
