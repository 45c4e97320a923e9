"""`shoal up` on a running cluster: what fails before Ray must restart leaves it running. All tests
share one cluster, with a stand-in for Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.providers.local.ssh_bed import QUICK_START, Bed, actions
from tests.simcloud.cloud import SimCloud

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

DAEMONS = "pgrep -x 'raylet|gcs_server'"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
        bed = Bed(cloud, laptop, hosts)
        await laptop.run("mkdir data; echo 1 > data/number")
        yield bed


@pytest_asyncio.fixture(loop_scope="module")
async def bed(shared: Bed) -> Bed:
    """The cluster, up and without changes."""
    await shared.write(
        **QUICK_START,
        file_mounts={"~/data": "data"},
        setup_commands=["true"],
        head_setup_commands=[],
    )
    await shared.up()
    return shared


async def daemons(bed: Bed) -> list[str]:
    return await asyncio.gather(*(bed.read(host, DAEMONS) for host in bed.hosts))


@pytest.mark.parametrize("node", ["head", "worker-1"])
async def test_a_mount_that_is_not_writable_stops_nothing(bed: Bed, node: str) -> None:
    before = await daemons(bed)
    unwritable = {"head": 0, "worker-1": 1}[node]
    for host in bed.hosts:
        await host.run("rm -rf /data; install -d -o ubuntu /data")
    await bed.hosts[unwritable].run("chown root /data")
    await bed.write(file_mounts={"~/data": "data", "/data/in": "data"})
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4
    assert f"nothing was restarted: could not prepare {node}\n" in done.stderr
    assert "Ray runs on as before" in done.stderr
    assert await daemons(bed) == before
    await bed.hosts[unwritable].run("chown ubuntu /data")
    events = await bed.up()
    nodes = ("head", "worker-1", "worker-2")
    assert actions(events) == [("restart", node) for node in nodes]
    after = await daemons(bed)
    assert all(after) and not set(after) & set(before)


async def test_a_setup_command_that_fails_stops_nothing(bed: Bed) -> None:
    before = await daemons(bed)
    picky = f'test "$HOSTNAME" != {bed.workers[1].name}'
    await bed.write(setup_commands=[picky])
    done = await bed.shoal("up c.yaml --yes")
    assert done.code == 4
    assert "nothing was restarted: could not prepare worker-2\n" in done.stderr
    assert "setup command 1 of 1 failed" in done.stderr
    assert await daemons(bed) == before


@pytest.mark.long
async def test_an_added_worker_waits_for_a_head_that_is_about_to_restart(bed: Bed) -> None:
    assert (await bed.shoal("down c.yaml --yes --workers-only")).code == 0
    # The workers are prepared long before the head, whose old GCS still answers.
    await bed.write(head_setup_commands=["sleep 2"])
    events = await bed.up()
    assert ("restart", "head") in actions(events)
    starting = [e["node"] for e in events if e["event"] == "node" and e["phase"] == "starting"]
    assert starting[0] == "head"


async def test_a_failed_up_with_another_key_leaves_the_cluster_reachable_by_name(bed: Bed) -> None:
    (await bed.laptop.run("ssh-keygen -q -N '' -f ~/other <<< y")).require("making a key")
    await bed.write("other.yaml", auth={"ssh_user": "ubuntu", "ssh_private_key": "~/other"})
    bed.settings.pop("auth")
    failed = await bed.shoal("up other.yaml --yes")
    assert failed.code not in (0, None)
    done = await bed.shoal("exec mine 'echo reached'")
    assert done.stdout == "reached\n", done.stderr
    done = await bed.shoal("down mine --yes")
    assert done.code == 0, done.stderr
    assert (await bed.shoal("ls --json")).stdout.count("mine") == 0
    for host in bed.hosts:
        assert await bed.read(host, "ls /var/tmp/shoal-owner 2>/dev/null; true") == ""


async def test_down_by_name_finds_what_a_failed_up_with_another_list_used(bed: Bed) -> None:
    *listed, added = bed.hosts
    provider = {"type": "local", "head_ip": bed.head.address}
    few = {**provider, "worker_ips": [host.address for host in listed[1:]]}
    assert (await bed.shoal("down mine --yes")).code == 0
    await bed.write(provider=few)
    await bed.up()
    bed.settings.pop("provider")
    # Its head cannot be prepared, but the added worker is claimed by then.
    await bed.write("more.yaml", head_setup_commands=["sleep 1; false"])
    assert (await bed.shoal("up more.yaml --yes")).code == 4
    claim = "cat /var/tmp/shoal-owner 2>/dev/null; true"
    assert await bed.read(added, claim) != ""
    done = await bed.shoal("down mine --yes")
    assert done.code == 0, done.stderr
    assert await bed.read(added, claim) == ""
