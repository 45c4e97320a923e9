"""Volumes on real machines with real disks: formatted only if blank, mounted, and kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from importlib import resources
from typing import Any

import pytest
import pytest_asyncio

from shoal.bootstrap.scripts.mount_volumes import EXIT_MOUNT_ERROR, ebs_name_in
from tests.providers.local.ssh_bed import QUICK_START, Bed, actions
from tests.simcloud.cloud import SimCloud
from tests.simcloud.disks import Disk, blank_disk
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

DAEMON = "etc/docker/daemon.json"


class Lab:
    """A cluster of two machines, each with a disk, and a third machine to try things on."""

    def __init__(self, bed: Bed, spare: Host, disks: list[Disk]) -> None:
        self.bed = bed
        self.spare = spare
        self.disks = disks

    async def plug_in(self) -> None:
        for host, disk in zip(self.bed.hosts, self.disks, strict=True):
            await disk.plug_into(host, "first")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab() -> AsyncIterator[Lab]:
    with ExitStack() as stack:
        disks = [stack.enter_context(blank_disk()) for _ in range(2)]
        async with SimCloud() as cloud:
            laptop, *hosts = await asyncio.gather(cloud.laptop(), *(cloud.boot() for _ in range(3)))
            lab = Lab(Bed(cloud, laptop, hosts[:2]), hosts[2], disks)
            await lab.plug_in()
            volumes = {"/data": {"device": "/dev/first", "docker_data_root": True}}
            settings = {**QUICK_START, "shoal": {**QUICK_START["shoal"], "volumes": volumes}}
            await lab.bed.write(**settings)
            yield lab


async def mounted(host: Host, where: str = "/data") -> str:
    return (await host.run(f"findmnt -no FSTYPE {where}")).stdout.strip()


async def test_blank_disks_are_formatted_mounted_and_the_users_own(lab: Lab) -> None:
    bed = lab.bed
    await bed.head.run(f"mkdir -p /etc/docker; echo '{{\"debug\": true}}' > /{DAEMON}")
    await bed.up()
    for host in bed.hosts:
        assert await mounted(host) == "ext4"
        await bed.read(host, "touch /data/mine")
        (line,) = (await host.run("grep /data /etc/fstab")).stdout.splitlines()
        assert line.startswith("UUID=") and "nofail" in line
    given = json.loads((bed.head.root() / DAEMON).read_text())
    assert given == {"debug": True, "data-root": "/data/docker"}, "what else it says stays"


async def test_a_second_up_has_nothing_to_do(lab: Lab) -> None:
    assert actions(await lab.bed.up()) == []


async def test_a_volume_that_is_gone_after_a_reboot_is_mounted_again_with_what_is_on_it(
    lab: Lab,
) -> None:
    for host in lab.bed.hosts:
        await host.reboot()  # which mounts nothing here
        assert await mounted(host) == ""
    await lab.plug_in()
    await lab.bed.up()
    for host in lab.bed.hosts:
        assert await mounted(host) == "ext4"
        assert await lab.bed.read(host, "ls /data/mine") == "/data/mine"


async def test_a_disk_that_is_not_there_is_told_with_those_that_are(lab: Lab) -> None:
    settings = {"volumes": {"/data": {"device": "/dev/first"}, "/more": {"device": "/dev/second"}}}
    await lab.bed.write(shoal=settings)
    hurry = "s/_DEVICE_SECONDS = 90.0/_DEVICE_SECONDS = 1.0/"
    told = await _hand(lab.spare, hurry, **_wish("/dev/second"))
    assert told["what"] == "no disk /dev/second"
    assert "loop" in told["why"] and "shoal.volumes" in told["fix"]


# What may be on a disk, and what is then said of it.
PARTITIONED = bytes(446) + b"\x80\x20\x21\x00\x83\x10\x10\x08\x00\x08\0\0\x00\x10\0\0" + bytes(48)
CONTENTS = {
    "a partition table": (PARTITIONED + b"\x55\xaa", 0),
    "crypto_LUKS": (b"LUKS\xba\xbe\x00\x01", 0),
    "data that is not a known file system": (b"rows of a database", 512),
}


@pytest.mark.parametrize("holds", CONTENTS)
async def test_a_disk_that_holds_anything_is_never_formatted(lab: Lab, holds: str) -> None:
    with blank_disk(16) as disk:
        disk.write(*CONTENTS[holds])
        before = disk.read()
        await disk.plug_into(lab.spare, "odd")
        told = await _hand(lab.spare, **_wish("/dev/odd"))
        assert holds in told["what"]
        assert disk.read() == before
        await lab.spare.run("rm /dev/odd")


async def test_data_at_the_very_end_of_a_disk_is_data(lab: Lab) -> None:
    with blank_disk(16) as disk:
        disk.write(b"the end", at=(16 << 20) - 7)
        await disk.plug_into(lab.spare, "tail")
        told = await _hand(lab.spare, **_wish("/dev/tail"))
        assert "it holds data" in told["what"]


async def test_a_disk_with_files_is_mounted_as_it_is(lab: Lab) -> None:
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "old")
        script = (
            "mkfs.ext4 -q /dev/old; mount /dev/old /mnt; echo precious > /mnt/file; umount /mnt"
        )
        (await lab.spare.run(script)).require("filling the disk")
        assert await _hand(lab.spare, **_wish("/dev/old", "/old")) == {}
        assert (await lab.spare.run("cat /old/file")).stdout == "precious\n"
        assert (await lab.spare.run("stat -c %U /old")).stdout == "root\n", "somebody's own"
        again = await _hand(lab.spare, **_wish("/dev/old", "/elsewhere"))
        assert again["what"].endswith("is in use by /old")
        await lab.spare.run("umount /old")


async def test_a_blank_disk_of_another_size_is_taken_for_another_disk(lab: Lab) -> None:
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "small")
        told = await _hand(lab.spare, **{**_wish("/dev/small"), "size": 100})
        assert told["what"].endswith("has 0.1 GiB, expected 100")
        assert not disk.read().strip(b"\0")


async def test_a_place_may_have_any_name(lab: Lab) -> None:
    where = "/große daten"
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "named")
        for _ in range(2):
            assert await _hand(lab.spare, **_wish("/dev/named", where)) == {}
        assert await mounted(lab.spare, f"'{where}'") == "ext4"
        line = (await lab.spare.run("grep daten /etc/fstab")).stdout
        assert line.split()[1] == r"/große\040daten"
        by_fstab = f"umount '{where}' && mount '{where}' && umount '{where}'"
        (await lab.spare.run(by_fstab)).require("mounting it as at boot")


async def test_nothing_is_hidden_by_a_mount(lab: Lab) -> None:
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "fresh")
        await lab.spare.run("mkdir -p /full; touch /full/file")
        told = await _hand(lab.spare, **_wish("/dev/fresh", "/full"))
        assert told["what"] == "/full is not empty"
        assert not disk.read().strip(b"\0")


async def _stand_in(host: Host, name: str, does: str = "") -> None:
    """A program that writes down how it was called, and does little else."""
    script = f'#!/bin/sh\necho "$@" >> /calls\n{does}\n'
    await host.run(f"cat > /usr/local/sbin/{name}; chmod +x /usr/local/sbin/{name}", stdin=script)
    await host.run("rm -f /calls")


async def test_a_docker_that_keeps_its_data_elsewhere_is_restarted_once(lab: Lab) -> None:
    host = lab.spare
    with blank_disk() as disk:
        await disk.plug_into(host, "docker-disk")
        wish = {**_wish("/dev/docker-disk", "/images"), "docker_data_root": True}
        await host.run("echo /var/lib/docker > /root-of-docker")
        await _stand_in(host, "docker", "cat /root-of-docker")
        await _stand_in(host, "systemctl", "exit 1")
        told = await _hand(host, **wish)
        assert told["what"] == "Docker still stores its data in /var/lib/docker"
        await _stand_in(host, "systemctl", "echo /images/docker > /root-of-docker")
        for _ in range(2):
            assert await _hand(host, **wish) == {}
        calls = (await host.run("cat /calls")).stdout.splitlines()
        assert calls.count("restart docker") == 1
        await host.run("umount /images; rm /usr/local/sbin/docker /usr/local/sbin/systemctl")


async def test_efs_is_mounted_as_aws_recommends_and_again_after_a_reboot(lab: Lab) -> None:
    await _stand_in(lab.spare, "mount.nfs4")
    await _stand_in(lab.spare, "mount")
    source = "fs-1.efs.us-west-2.amazonaws.com:/"
    wish: dict[str, Any] = {"kind": "efs", "path": "/shared", "source": source, "read_only": False}
    assert await _hand(lab.spare, **wish) == {}
    options = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,rw"
    called = (await lab.spare.run("cat /calls")).stdout
    assert called == f"-t nfs4 -o {options} {source} /shared\n"
    line = (await lab.spare.run("grep /shared /etc/fstab")).stdout
    assert line == f"{source} /shared nfs4 {options},_netdev,nofail 0 0 # shoal\n"
    await _stand_in(lab.spare, "mount", "echo no way >&2; exit 32")
    told = await _hand(lab.spare, **{**wish, "path": "/other"})
    assert (told["what"], told["why"]) == (f"could not mount {source}", "no way")
    assert "port 2049" in told["fix"]
    await lab.spare.run("rm /usr/local/sbin/mount /usr/local/sbin/mount.nfs4")


async def test_a_bucket_is_mounted_for_the_user_where_there_is_a_program_for_it(lab: Lab) -> None:
    wish: dict[str, Any] = {
        "kind": "s3", "path": "/models", "bucket": "models", "read_only": True, "owner": "ubuntu",
    }  # fmt: skip
    told = await _hand(lab.spare, **wish)
    assert told["why"] == "mount-s3 is not installed"
    await _stand_in(lab.spare, "mount-s3")
    assert await _hand(lab.spare, **wish) == {}
    called = (await lab.spare.run("cat /calls")).stdout
    assert called == "models /models --allow-other --uid=1000 --gid=1000 --read-only\n"


async def test_the_name_that_ec2_gave_a_disk_is_read_from_its_controller() -> None:
    page = bytearray(4096)
    page[24:64] = b"Amazon Elastic Block Store".ljust(40)
    page[3072:3104] = b"/dev/sdf".ljust(32)
    assert ebs_name_in(bytes(page)) == "sdf"
    page[24:64] = b"Some other disk".ljust(40)
    assert ebs_name_in(bytes(page)) == ""


def _wish(device: str, where: str = "/fresh") -> dict[str, Any]:
    return {
        "kind": "volume", "path": where, "device": device, "size": 0, "filesystem": "ext4",
        "owner": "ubuntu", "docker_data_root": False,
    }  # fmt: skip


async def _hand(host: Host, edit: str = "", **wish: Any) -> dict[str, str]:
    """What the hand says that stands in the way; nothing if nothing does."""
    source = resources.files("shoal.bootstrap.scripts").joinpath("mount_volumes.py").read_text()
    if edit:
        _, old, new, _ = edit.split("/")
        source = source.replace(old, new)
    done = await host.run(["python3", "-", json.dumps([wish])], stdin=source)
    assert done.code in (0, EXIT_MOUNT_ERROR), done.stderr
    return dict(json.loads(done.stdout)) if done.code else {}
