"""Baked images: the first node of a type becomes an AMI, and later nodes skip setup. The tests
share one cluster with a fake Ray; each brings it up first."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.polling import until
from tests.providers.aws.aws_bed import Bed, cluster_file
from tests.providers.local.ssh_bed import QUICK_START
from tests.simcloud.calls import ApiError
from tests.simcloud.cloud import SimCloud
from tests.simcloud.faults import Fault, Trouble
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

BAKE = {**QUICK_START["shoal"], "bake": True}
# Each run leaves the name of its host.
SETUP = "hostname >> ~/setup-runs; echo set up | sudo tee /opt/marker > /dev/null"
FRIEND = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFriend friend"
LEFT_BEHIND = (
    "touch /tmp/shoal-left ~/.shoal/left; grep -q Friend ~/.ssh/authorized_keys || "
    f"echo '{FRIEND}' >> ~/.ssh/authorized_keys"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    async with SimCloud() as cloud:
        bed = Bed(cloud, await cloud.laptop())
        # Snapshots begin a while after CreateImage, with what is on the disk then.
        cloud.ec2.snapshot_delay_s = 1
        await bed.laptop.run("mkdir code; echo 1 > code/version")
        await write(bed, workers=1)
        yield bed


async def write(bed: Bed, *, workers: int, setup: str = SETUP, **settings: Any) -> None:
    types = cluster_file()["available_node_types"]
    types["worker"]["min_workers"] = workers
    types["worker"]["max_workers"] = 8
    await bed.write(
        max_workers=8,
        shoal=BAKE,
        available_node_types=types,
        setup_commands=[setup, LEFT_BEHIND],
        file_mounts={"~/code": "code"},
        **settings,
    )


def images(bed: Bed, node_type: str = "") -> list[dict[str, Any]]:
    found = bed.ec2.describe_images(
        Owners=["self"], Filters=[{"Name": "tag-key", "Values": ["shoal-image"]}]
    )["Images"]
    return [i for i in found if not node_type or tags(i)["ray-user-node-type"] == node_type]


def tags(record: dict[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in record["Tags"]}


def workers(bed: Bed) -> dict[str, dict[str, Any]]:
    """The records of the workers, by id."""
    filters = [
        {"Name": "tag:ray-node-type", "Values": ["worker"]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    pages = bed.ec2.describe_instances(Filters=filters)["Reservations"]
    return {record["InstanceId"]: record for page in pages for record in page["Instances"]}


async def new_worker(bed: Bed, count: int, **settings: Any) -> tuple[dict[str, Any], Host]:
    """The record and the host of the worker that an `up` adds."""
    before = workers(bed)
    await write(bed, workers=count, **settings)
    await bed.up()
    (id,) = workers(bed).keys() - before.keys()
    return workers(bed)[id], bed.cloud.ec2.host(id)


def search(disk: Path, text: str) -> list[str]:
    """The files of a disk that contain this text."""
    words = ["grep", "-rlF", "--", text, str(disk)]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return done.stdout.splitlines()


async def setup_runs(host: Host) -> list[str]:
    return (await host.run("cat /home/ubuntu/setup-runs")).stdout.split()


async def test_later_nodes_start_from_the_image_of_the_first_and_skip_setup(bed: Bed) -> None:
    await bed.up()
    (image,) = images(bed, "worker")
    assert len(images(bed, "head")) == 1
    (source,) = workers(bed).values()
    first = bed.cloud.ec2.host(source["InstanceId"])
    assert await setup_runs(first) == [first.name]

    await bed.laptop.run("echo 2 > code/version")
    record, host = await new_worker(bed, 2)

    assert record["ImageId"] == image["ImageId"]
    assert await setup_runs(host) == [first.name]
    files = await host.run("cat /opt/marker /home/ubuntu/code/version")
    assert files.stdout == "set up\n2\n"
    # Nothing is left to do on it, and its own image is not baked again.
    done = await bed.shoal("plan c.yaml")
    assert "nothing to do" in done.stdout, done.stdout
    assert len(images(bed)) == 2


async def test_an_image_has_no_secrets_and_no_state_of_its_node(bed: Bed) -> None:
    await bed.up()
    head = next(rental.id for rental in bed.cloud.ledger.running() if rental.id not in workers(bed))
    token = (await bed.cloud.ec2.host(head).run("cat /home/ubuntu/.shoal/auth_token")).stdout
    key = (await bed.cloud.ec2.host(head).run("cat /home/ubuntu/.shoal/cluster_key")).stdout
    assert token and key
    host_keys = [
        (await bed.cloud.ec2.host(id).run("cat /etc/ssh/ssh_host_ed25519_key")).stdout
        for id in (head, *workers(bed))
    ]
    for image in images(bed):
        disk = bed.cloud.ec2.instances.images.disk(image["ImageId"])
        assert disk is not None
        for secret in (token, key.splitlines()[2], *(k.splitlines()[2] for k in host_keys)):
            assert search(disk, secret.strip()) == [], image["Name"]
        assert search(disk, FRIEND) != [], "the search finds what is there"


async def test_a_node_from_an_image_trusts_only_its_own_cluster(bed: Bed) -> None:
    await bed.up()
    _, host = await new_worker(bed, len(workers(bed)) + 1)
    left = await host.run("ls /tmp/shoal-left /home/ubuntu/.shoal/left /var/lib/shoal-image")
    assert left.stdout == ""
    keys = (await host.run("cat /home/ubuntu/.ssh/authorized_keys")).stdout.splitlines()
    assert FRIEND in keys, "a key that setup authorized"
    assert len(keys) == 3, f"the key pair's, the head's and {FRIEND}: {keys}"


@pytest.mark.long
async def test_changed_setup_commands_bake_again(bed: Bed) -> None:
    await bed.up()
    old = {image["ImageId"] for image in images(bed, "worker")}
    changed = SETUP + "; echo changed > ~/changed"
    record, host = await new_worker(bed, len(workers(bed)) + 1, setup=changed)
    assert record["ImageId"] not in old
    assert await setup_runs(host) == [host.name]
    (new,) = {image["ImageId"] for image in images(bed, "worker")} - old

    record, host = await new_worker(bed, len(workers(bed)) + 1, setup=changed)
    assert record["ImageId"] == new
    assert (await host.run("cat /home/ubuntu/changed")).stdout == "changed\n"


async def test_a_cluster_is_fine_without_its_image(bed: Bed) -> None:
    denied = ApiError("UnauthorizedOperation", "You are not authorized", 403)
    fault = bed.cloud.faults.fail_call("CreateImage", error=denied, times=9)
    await write(bed, workers=len(workers(bed)), setup=SETUP + "; true")
    await bed.shoal("down c.yaml --yes")
    await write(bed, workers=1, setup=SETUP + "; true")
    events = await bed.up()
    fault.lift()
    warnings = [e for e in events if e["event"] == "warning"]
    assert {w["what"] for w in warnings} == {"could not create an image of it"}
    assert events[-1]["event"] == "ready"


@pytest.mark.long
async def test_an_image_that_aws_cannot_complete_is_not_used_and_is_baked_again(bed: Bed) -> None:
    await bed.shoal("down c.yaml --yes --images")
    bed.cloud.ec2.fail_images = 2
    setup = SETUP + "; : 1"
    await write(bed, workers=1, setup=setup)
    await bed.up()
    await until(lambda: [i["State"] for i in images(bed)] == ["failed", "failed"])
    (failed,) = images(bed, "worker")

    record, host = await new_worker(bed, 2, setup=setup)

    assert record["ImageId"] != failed["ImageId"]
    assert await setup_runs(host) == [host.name]
    (image,) = images(bed, "worker")
    assert image["ImageId"] != failed["ImageId"]
    done = await bed.shoal("bake c.yaml --prune --yes")
    assert done.code == 0, done.stdout + done.stderr
    assert [i["State"] for i in images(bed)] == ["available"], "the head's had failed"


@pytest.mark.long
async def test_an_image_that_was_deleted_meanwhile_does_not_stop_a_launch(bed: Bed) -> None:
    await bed.up()

    def delete(call: Any) -> None:
        for image in images(bed, "worker"):
            bed.ec2.deregister_image(ImageId=image["ImageId"])

    seen = Fault(lambda call, launch: launch is not None, Trouble.THROTTLED, times=1, do=delete)
    bed.cloud.faults.add(seen)
    _, host = await new_worker(bed, len(workers(bed)) + 1)
    assert seen.struck == 1
    assert await setup_runs(host) == [host.name]


async def test_plan_doctor_and_gc_show_images_and_down_deletes_them(bed: Bed) -> None:
    await write(bed, workers=max(1, len(workers(bed))))
    await bed.up()
    done = await bed.shoal("plan c.yaml")
    baked = set(re.findall(r"(ami-\w+): baked from ami-", done.stdout))
    (image,) = (i for i in images(bed, "worker") if i["ImageId"] in baked)
    assert "/month" in done.stdout

    await write(bed, workers=len(workers(bed)), setup="true")
    done = await bed.shoal("doctor c.yaml")
    assert f"image {image['ImageId']} of worker is no longer used" in done.stdout + done.stderr

    done = await bed.shoal("down c.yaml --yes")
    assert "baked images are kept" in done.stdout + done.stderr
    kept = await bed.cloud.ec2.leftovers()
    assert {thing.kind for thing in kept} == {"image", "snapshot"}
    done = await bed.shoal("gc --yes")
    assert f"image {image['ImageId']}" in done.stdout + done.stderr
    assert await bed.cloud.ec2.leftovers() == kept
    done = await bed.shoal("down c.yaml --yes --images")
    assert done.code == 0, done.stdout + done.stderr
    await bed.cloud.assert_nothing_left()


@pytest.mark.long
async def test_bake_leaves_nothing_but_the_images_that_up_starts_from(bed: Bed) -> None:
    await bed.shoal("down c.yaml --yes --images")
    await write(bed, workers=0)
    done = await bed.shoal("bake c.yaml --yes")
    assert done.code == 0, done.stdout + done.stderr
    assert {thing.kind for thing in await bed.cloud.ec2.leftovers()} == {"image", "snapshot"}
    assert bed.running() == []

    done = await bed.shoal("bake c.yaml --yes")
    assert "it has all images" in done.stdout + done.stderr
    await write(bed, workers=1)
    await bed.up()
    (worker,) = workers(bed).values()
    host = bed.cloud.ec2.host(worker["InstanceId"])
    assert await setup_runs(host) != [host.name]
    done = await bed.shoal("down c.yaml --yes --images")
    await bed.cloud.assert_nothing_left()
