"""Volumes on simulated hosts with real disks: formatted only if blank, mounted, and kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from shoal.bootstrap.scripts.mount_volumes import (
    EXIT_MOUNT_ERROR,
    ebs_name_in,
    instance_stores,
)
from shoal.remote.scripts import read_script
from tests.providers.local.ssh_bed import QUICK_START, Bed, actions
from tests.simcloud.cloud import SimCloud
from tests.simcloud.disks import Disk, blank_disk
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]

DAEMON = "etc/docker/daemon.json"
INSTANCE_MODEL = "Amazon EC2 NVMe Instance Storage"


class Lab:
    """A cluster of two hosts with a disk each, and a spare host for single mounts."""

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
            daemon = f"mkdir -p /etc/docker; echo '{{\"debug\": true}}' > /{DAEMON}"
            await lab.bed.head.run(daemon)
            await lab.bed.up()
            yield lab


async def mounted(host: Host, path: str = "/data") -> str:
    return (await host.run(f"findmnt -no FSTYPE {path}")).stdout.strip()


async def test_blank_disks_are_formatted_mounted_and_owned_by_the_user(lab: Lab) -> None:
    bed = lab.bed
    for host in bed.hosts:
        assert await mounted(host) == "ext4"
        await bed.read(host, "touch /data/writable")
        (line,) = (await host.run("grep /data /etc/fstab")).stdout.splitlines()
        assert line.startswith("UUID=") and "nofail" in line
    settings = json.loads((bed.head.root() / DAEMON).read_text())
    assert settings == {"debug": True, "data-root": "/data/docker"}, "other settings are kept"


async def test_second_up_has_nothing_to_do(lab: Lab) -> None:
    assert actions(await lab.bed.up()) == []


async def test_volume_is_mounted_again_with_its_files_after_a_reboot(
    lab: Lab,
) -> None:
    for host in lab.bed.hosts:
        await lab.bed.read(host, "touch /data/mine")
        await host.reboot()  # a simulated host mounts nothing at boot
        assert await mounted(host) == ""
    await lab.plug_in()
    await lab.bed.up()
    for host in lab.bed.hosts:
        assert await mounted(host) == "ext4"
        assert await lab.bed.read(host, "ls /data/mine") == "/data/mine"


async def test_missing_disk_is_reported_with_the_disks_of_the_host(lab: Lab) -> None:
    short_wait = "s/_DEVICE_SECONDS = 90.0/_DEVICE_SECONDS = 1.0/"
    error = await _mount(lab.spare, short_wait, **_request("/dev/second"))
    assert error["what"] == "no disk /dev/second"
    assert "loop" in error["why"] and "shoal.volumes" in error["fix"]


# Contents of a disk, by how the error names them.
PARTITIONED = bytes(446) + b"\x80\x20\x21\x00\x83\x10\x10\x08\x00\x08\0\0\x00\x10\0\0" + bytes(48)
CONTENTS = {
    "a partition table": (PARTITIONED + b"\x55\xaa", 0),
    "crypto_LUKS": (b"LUKS\xba\xbe\x00\x01", 0),
    "data that is not a known file system": (b"rows of a database", 512),
}


@pytest.mark.parametrize("holds", CONTENTS)
async def test_disk_with_any_content_is_never_formatted(lab: Lab, holds: str) -> None:
    with blank_disk(16) as disk:
        disk.write(*CONTENTS[holds])
        before = disk.read()
        await disk.plug_into(lab.spare, "odd")
        error = await _mount(lab.spare, **_request("/dev/odd"))
        assert holds in error["what"]
        assert disk.read() == before
        await lab.spare.run("rm /dev/odd")


async def test_data_at_the_end_of_a_disk_counts_as_content(lab: Lab) -> None:
    with blank_disk(16) as disk:
        disk.write(b"the end", at=(16 << 20) - 7)
        await disk.plug_into(lab.spare, "tail")
        error = await _mount(lab.spare, **_request("/dev/tail"))
        assert "it holds data" in error["what"]


async def test_disk_with_files_is_mounted_unchanged(lab: Lab) -> None:
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "old")
        script = (
            "mkfs.ext4 -q /dev/old; mount /dev/old /mnt; echo precious > /mnt/file; umount /mnt"
        )
        (await lab.spare.run(script)).require("filling the disk")
        assert await _mount(lab.spare, **_request("/dev/old", "/old")) == {}
        assert (await lab.spare.run("cat /old/file")).stdout == "precious\n"
        assert (await lab.spare.run("stat -c %U /old")).stdout == "root\n", (
            "its owner does not change"
        )
        again = await _mount(lab.spare, **_request("/dev/old", "/elsewhere"))
        assert again["what"].endswith("is in use by /old")
        await lab.spare.run("umount /old")


async def test_blank_disk_of_another_size_is_refused(lab: Lab) -> None:
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "small")
        error = await _mount(lab.spare, **{**_request("/dev/small"), "size": 100})
        assert error["what"].endswith("has 0.1 GiB, expected 100")
        assert not disk.read().strip(b"\0")


async def test_mount_point_may_have_any_name(lab: Lab) -> None:
    path = "/große daten"
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "named")
        for _ in range(2):
            assert await _mount(lab.spare, **_request("/dev/named", path)) == {}
        assert await mounted(lab.spare, f"'{path}'") == "ext4"
        line = (await lab.spare.run("grep daten /etc/fstab")).stdout
        assert line.split()[1] == r"/große\040daten"
        by_fstab = f"umount '{path}' && mount '{path}' && umount '{path}'"
        (await lab.spare.run(by_fstab)).require("mounting it as at boot")


async def test_mount_never_hides_files(lab: Lab) -> None:
    with blank_disk() as disk:
        await disk.plug_into(lab.spare, "fresh")
        await lab.spare.run("mkdir -p /full; touch /full/file")
        error = await _mount(lab.spare, **_request("/dev/fresh", "/full"))
        assert error["what"] == "/full is not empty"
        assert not disk.read().strip(b"\0")


async def _install_fake(host: Host, name: str, body: str = "") -> None:
    """Install a program that records its arguments and runs `body`."""
    script = f'#!/bin/sh\necho "$@" >> /calls\n{body}\n'
    await host.run(f"cat > /usr/local/sbin/{name}; chmod +x /usr/local/sbin/{name}", stdin=script)
    await host.run("rm -f /calls")


async def test_docker_with_another_data_root_is_restarted_once(lab: Lab) -> None:
    host = lab.spare
    with blank_disk() as disk:
        await disk.plug_into(host, "docker-disk")
        request = {**_request("/dev/docker-disk", "/images"), "docker_data_root": True}
        await host.run("echo /var/lib/docker > /root-of-docker")
        await _install_fake(host, "docker", "cat /root-of-docker")
        await _install_fake(host, "systemctl", "exit 1")
        error = await _mount(host, **request)
        assert error["what"] == "Docker still stores its data in /var/lib/docker"
        await _install_fake(host, "systemctl", "echo /images/docker > /root-of-docker")
        for _ in range(2):
            assert await _mount(host, **request) == {}
        calls = (await host.run("cat /calls")).stdout.splitlines()
        assert calls.count("restart docker") == 1
        await host.run("umount /images; rm /usr/local/sbin/docker /usr/local/sbin/systemctl")


async def test_efs_is_mounted_as_aws_recommends_and_added_to_fstab(lab: Lab) -> None:
    await _install_fake(lab.spare, "mount.nfs4")
    await _install_fake(lab.spare, "mount")
    source = "fs-1.efs.us-west-2.amazonaws.com:/"
    request: dict[str, Any] = {
        "kind": "efs",
        "path": "/shared",
        "source": source,
        "read_only": False,
    }
    assert await _mount(lab.spare, **request) == {}
    options = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,rw"
    called = (await lab.spare.run("cat /calls")).stdout
    assert called == f"-t nfs4 -o {options} {source} /shared\n"
    line = (await lab.spare.run("grep /shared /etc/fstab")).stdout
    assert line == f"{source} /shared nfs4 {options},_netdev,nofail 0 0 # shoal\n"
    error = await _mount(lab.spare, **{**request, "path": "/safe", "tls": True})
    assert error["why"] == "mount.efs is missing and could not be installed"
    assert "amazon-efs-utils" in error["fix"]
    await lab.spare.run("rm /calls")
    await _install_fake(lab.spare, "mount.efs")
    assert await _mount(lab.spare, **{**request, "path": "/safe", "tls": True}) == {}
    assert (await lab.spare.run("cat /calls")).stdout == "-t efs -o tls,rw fs-1:/ /safe\n"
    await lab.spare.run("rm /usr/local/sbin/mount.efs")
    await _install_fake(lab.spare, "mount", "echo no way >&2; exit 32")
    error = await _mount(lab.spare, **{**request, "path": "/other"})
    assert (error["what"], error["why"]) == (f"could not mount {source}", "no way")
    assert "port 2049" in error["fix"]
    await lab.spare.run("rm /usr/local/sbin/mount /usr/local/sbin/mount.nfs4")


async def test_bucket_is_mounted_for_the_user_if_mount_s3_is_installed(lab: Lab) -> None:
    request: dict[str, Any] = {
        "kind": "s3", "path": "/models", "bucket": "models", "read_only": True, "owner": "ubuntu",
    }  # fmt: skip
    error = await _mount(lab.spare, **request)
    assert error["why"] == "mount-s3 is not installed"
    await _install_fake(lab.spare, "mount-s3")
    assert await _mount(lab.spare, **request) == {}
    called = (await lab.spare.run("cat /calls")).stdout
    assert called == "models /models --allow-other --uid=1000 --gid=1000 --read-only\n"
    await lab.spare.run("rm /usr/local/sbin/mount-s3")


async def test_instance_stores_are_found_by_their_model(tmp_path: Path) -> None:
    for number, model in enumerate(("Amazon Elastic Block Store", INSTANCE_MODEL, INSTANCE_MODEL)):
        directory = tmp_path / f"nvme{number}n1" / "device"
        directory.mkdir(parents=True)
        (directory / "model").write_text(f"{model}   \n")
    assert instance_stores(tmp_path) == [Path("/dev/nvme1n1"), Path("/dev/nvme2n1")]


async def test_an_instance_store_that_the_image_has_mounted_is_used_where_it_is(lab: Lab) -> None:
    store = "/opt/dlami/nvme"
    await lab.spare.run(f"mkdir -p {store} && mount -t tmpfs store {store}")
    request = _request("instance-store", "/scratch")
    for _ in range(2):
        assert await _mount(lab.spare, **request) == {}
    await lab.spare.run("touch /scratch/file")
    assert (await lab.spare.run(f"ls {store}")).stdout == "file\n"
    assert (await lab.spare.run("grep -c /scratch /proc/mounts")).stdout == "1\n"
    await lab.spare.run(f"umount /scratch {store}")


async def test_ebs_device_name_is_read_from_the_nvme_controller() -> None:
    page = bytearray(4096)
    page[24:64] = b"Amazon Elastic Block Store".ljust(40)
    page[3072:3104] = b"/dev/sdf".ljust(32)
    assert ebs_name_in(bytes(page)) == "sdf"
    page[24:64] = b"Some other disk".ljust(40)
    assert ebs_name_in(bytes(page)) == ""


def _request(device: str, path: str = "/fresh") -> dict[str, Any]:
    return {
        "kind": "volume", "path": path, "device": device, "size": 0, "filesystem": "ext4",
        "owner": "ubuntu", "docker_data_root": False,
    }  # fmt: skip


async def _mount(host: Host, edit: str = "", **request: Any) -> dict[str, str]:
    """Run the mount script, and return its error; empty if it succeeded."""
    source = read_script("shoal.bootstrap.scripts", "mount_volumes.py")
    if edit:
        _, old, new, _ = edit.split("/")
        source = source.replace(old, new)
    done = await host.run(["python3", "-", json.dumps([request])], stdin=source)
    assert done.code in (0, EXIT_MOUNT_ERROR), done.stderr
    return dict(json.loads(done.stdout)) if done.code else {}
