"""Finds, formats if blank, and mounts a machine's volumes and shared file systems. What holds
anything at all is never formatted.

This file runs on the machine, as root, in any Python 3 that is there, by being piped to it: it must
not import anything of Shoal's. `bootstrap.disks` reads what it prints. Everything may be repeated.

    python3 - '[{"kind": "volume", "where": "/data", "device": "/dev/sdf", ...}, ...]'
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TROUBLE = 70
_FSTAB = Path("/etc/fstab")
_DOCKER_SETTINGS = Path("/etc/docker/daemon.json")
_MARK = "# shoal"
# How the kernel and fstab write a character that would end a word.
_ESCAPED = re.compile(r"\\([0-7]{3})")
# A cloud attaches a volume while its machine boots.
_DEVICE_SECONDS = 90.0
_EDGE_BYTES = 1 << 20
_GIB = 1 << 30
# As AWS recommends for EFS.
_NFS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"


class Trouble(Exception):
    """What stands in the way, for a person."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.told = {"what": what, "why": why, "fix": fix}


def main(wishes: str) -> None:
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    have = {"volume": have_volume, "efs": have_efs, "s3": have_s3}
    try:
        for wish in json.loads(wishes):
            have[wish["kind"]](wish)
    except Trouble as trouble:
        print(json.dumps(trouble.told))
        sys.exit(TROUBLE)


def have_volume(wish: dict[str, Any]) -> None:
    where, device = Path(wish["where"]), found(wish["device"])
    if mounted_at(where) != number_of(device):
        expect_room(where)
        expect_idle(device)
        kind = filesystem_on(device)
        if kind is None:
            kind = wish["filesystem"]
            expect_size(device, wish["size"])
            make_filesystem(device, kind)
        where.mkdir(parents=True, exist_ok=True)
        run(["mount", "-t", kind, str(device), str(where)])
        uuid = run(["blkid", "-p", "-s", "UUID", "-o", "value", str(device)]).strip()
        remember(where, f"UUID={uuid}", kind, "defaults,nofail", "0 2")
    give_to(wish["owner"], where)
    if wish["docker_data_root"]:
        give_to_docker(where / "docker")


def have_efs(wish: dict[str, Any]) -> None:
    where, source = Path(wish["where"]), wish["source"]
    if mounted_at(where):
        return
    expect_room(where)
    have_nfs()
    where.mkdir(parents=True, exist_ok=True)
    options = f"{_NFS},{'ro' if wish['read_only'] else 'rw'}"
    try:
        run(["mount", "-t", "nfs4", "-o", options, source, str(where)], seconds=60)
    except Trouble as trouble:
        raise Trouble(
            f"{source} cannot be mounted",
            trouble.told["why"],
            "see that the file system has a mount target in the cluster's network, and that its "
            "security group lets the machines in at port 2049",
        ) from None
    remember(where, source, "nfs4", f"{options},_netdev,nofail", "0 0")


def have_s3(wish: dict[str, Any]) -> None:
    where = Path(wish["where"])
    if mounted_at(where):
        return
    expect_room(where)
    if shutil.which("mount-s3") is None:
        raise Trouble(
            f"the bucket {wish['bucket']} cannot be mounted",
            "mount-s3 is not installed",
            "use an image that has it, or install it in initialization_commands: "
            "https://github.com/awslabs/mountpoint-s3",
        )
    where.mkdir(parents=True, exist_ok=True)
    owner = pwd.getpwnam(wish["owner"])
    words = ["mount-s3", wish["bucket"], str(where), "--allow-other"]
    words += [f"--uid={owner.pw_uid}", f"--gid={owner.pw_gid}"]
    words += ["--read-only"] if wish["read_only"] else ["--allow-delete", "--allow-overwrite"]
    run(words, seconds=60)


# Which device it is


def found(name: str) -> Path:
    """The device that is known by a name, once it is there."""
    deadline = time.monotonic() + _DEVICE_SECONDS
    while True:
        device = device_named(name)
        if device is not None:
            return device
        if time.monotonic() > deadline:
            there = run(["lsblk", "-dno", "NAME,SIZE"], may_fail=True).splitlines()
            raise Trouble(
                f"there is no disk {name}",
                "there are " + ", ".join(" of ".join(row.split()) for row in there),
                "correct the device under shoal.volumes, or attach the disk",
            )
        time.sleep(0.5)


def device_named(name: str) -> Path | None:
    """A cloud's name for a disk may be another one here: xvdf for sdf, or one that only the
    controller of an NVMe disk knows."""
    names = [name]
    if name.startswith("/dev/sd"):
        names.append("/dev/xvd" + name[len("/dev/sd") :])
    for path in map(Path, names):
        if path.exists():
            return path.resolve()
    for disk in sorted(Path("/dev").glob("nvme[0-9]*n1")):
        if f"/dev/{ebs_name(disk)}" in names:
            return disk
    return None


def ebs_name(disk: Path) -> str:
    """The name, without /dev/, under which EC2 attached an NVMe disk; empty for any other."""
    page = ctypes.create_string_buffer(4096)
    # struct nvme_admin_cmd: Identify (6), of the controller (cdw10 is 1).
    command = bytearray(72)
    command[0] = 6
    command[24:32] = ctypes.addressof(page).to_bytes(8, sys.byteorder)
    command[36:40] = len(page).to_bytes(4, sys.byteorder)
    command[40:44] = (1).to_bytes(4, sys.byteorder)
    try:
        with disk.open("rb", buffering=0) as file:
            fcntl.ioctl(file, 0xC0484E41, command)
    except OSError:
        return ""
    return ebs_name_in(page.raw)


def ebs_name_in(page: bytes) -> str:
    """The same, from what an NVMe controller tells of itself."""
    if not page[24:64].startswith(b"Amazon Elastic Block Store"):
        return ""
    name = page[3072:3104].split(b"\0")[0].decode(errors="replace").strip()
    return name[len("/dev/") :] if name.startswith("/dev/") else name


# What is on it


def filesystem_on(device: Path) -> str | None:
    """The kind of file system on a device, or None for a device with nothing at all on it. Raises
    for everything else: it is somebody's."""
    words = ["blkid", "-p", "-o", "export", str(device)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    facts = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if facts.get("USAGE") == "filesystem" and "TYPE" in facts:
        return facts["TYPE"]
    if "PTTYPE" in facts or any(sysfs(device).glob(f"{device.name}*")):
        raise not_blank(device, "a partition table", "name one of its partitions; or, ")
    if "TYPE" in facts:
        raise not_blank(device, facts["TYPE"])
    # 2 is what blkid says of a device on which it finds nothing.
    if done.returncode != 2 or not is_zero_at_its_edges(device):
        raise not_blank(device, "data that is no file system known here")
    return None


def not_blank(device: Path, holds: str, other_way: str = "") -> Trouble:
    wipe = f"sudo wipefs -a {device} && sudo blkdiscard -z {device}"
    return Trouble(
        f"{device} is not formatted: it holds {holds}",
        "only a blank disk is formatted",
        f"{other_way}if nobody needs what is on it: {wipe}",
    )


def is_zero_at_its_edges(device: Path) -> bool:
    with device.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        for start in (0, max(0, size - _EDGE_BYTES)):
            file.seek(start)
            if file.read(_EDGE_BYTES).strip(b"\0"):
                return False
    return True


def expect_size(device: Path, gib: int) -> None:
    """A blank disk of another size than the file asks for is another disk."""
    with device.open("rb", buffering=0) as file:
        actual = file.seek(0, os.SEEK_END) / _GIB
    if gib and abs(actual - gib) > 0.01 * gib:
        raise Trouble(
            f"{device} has {actual:.1f} GiB, and not {gib}",
            "it may be another disk, so it is not formatted",
            "correct size or device under shoal.volumes",
        )


def make_filesystem(device: Path, kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        package = {"xfs": "xfsprogs"}.get(kind, "e2fsprogs")
        raise Trouble(
            f"mkfs.{kind} is missing",
            f"{device} is to be formatted with {kind}",
            f"use an image that has {package}, or another filesystem under shoal.volumes",
        )
    run(["mkfs", "-t", kind, str(device)])


# Where it is mounted, and whose it is


def sysfs(device: Path) -> Path:
    return Path("/sys/class/block", device.name)


def number_of(device: Path) -> str:
    number = device.stat().st_rdev
    return f"{os.major(number)}:{os.minor(number)}"


def mounts() -> list[tuple[str, Path]]:
    """What is mounted: numbers of devices, and places."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [(row[2], Path(_ESCAPED.sub(lambda m: chr(int(m[1], 8)), row[4]))) for row in rows]


def mounted_at(where: Path) -> str:
    """The number of what is mounted at a place; empty: nothing is."""
    return next((number for number, place in reversed(mounts()) if place == where), "")


def expect_idle(device: Path) -> None:
    holders = sysfs(device) / "holders"
    users = [str(place) for number, place in mounts() if number == number_of(device)]
    users += [other.name for other in holders.glob("*")]
    if users:
        raise Trouble(
            f"{device} is in use by {users[0]}",
            fix="correct the device under shoal.volumes, or free it",
        )


def expect_room(where: Path) -> None:
    """Raise where a mount would hide something."""
    if mounted_at(where):
        raise Trouble(f"something else is mounted at {where}", fix=f"sudo umount {where}")
    if where.is_dir() and any(where.iterdir()):
        raise Trouble(
            f"{where} is not empty",
            "what is in it could not be reached any more",
            "move it away, or mount elsewhere",
        )


def remember(where: Path, source: str, kind: str, options: str, checks: str) -> None:
    """Have something mounted again after a reboot. A line of somebody else's for the same place
    stays as it is."""
    place = str(where).replace("\\", "\\134").replace(" ", "\\040")
    lines = _FSTAB.read_text().splitlines() if _FSTAB.exists() else []
    same = [line for line in lines if line.split()[1:2] == [place]]
    if all(line.endswith(_MARK) for line in same):
        kept = [line for line in lines if line not in same]
        replace(
            _FSTAB, "\n".join([*kept, f"{source} {place} {kind} {options} {checks} {_MARK}", ""])
        )


def give_to(owner: str, where: Path) -> None:
    """Let a user write at the top of a file system on which there is nothing yet."""
    if {path.name for path in where.iterdir()} <= {"lost+found"}:
        user = pwd.getpwnam(owner)
        os.chown(where, user.pw_uid, user.pw_gid)


# What else it takes


def give_to_docker(root: Path) -> None:
    """Have Docker keep its images and containers there. Its other settings stay."""
    try:
        text = _DOCKER_SETTINGS.read_text() if _DOCKER_SETTINGS.exists() else "{}"
        settings = json.loads(text)
    except ValueError:
        raise Trouble(
            f"{_DOCKER_SETTINGS} is not JSON", fix="correct it, then shoal up again"
        ) from None
    if settings.get("data-root") != str(root):
        _DOCKER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        wanted = {**settings, "data-root": str(root)}
        replace(_DOCKER_SETTINGS, json.dumps(wanted, indent=2) + "\n")
    used = docker_root()
    if used in ("", str(root)):
        return  # one that starts later reads its settings then
    run(["systemctl", "restart", "docker"], may_fail=True)
    if docker_root() != str(root):
        raise Trouble(
            f"Docker still keeps its data in {used}",
            f"it must be restarted to use {root}, and systemctl restart docker did not do it",
            "restart it, then shoal up again",
        )


def docker_root() -> str:
    """Where a running Docker keeps its data; empty where none runs."""
    return run(["docker", "info", "-f", "{{.DockerRootDir}}"], may_fail=True).strip()


def have_nfs() -> None:
    """Have the program that mounts NFS, which Ubuntu's images lack."""
    for manager, package in (("apt-get", "nfs-common"), ("dnf", "nfs-utils"), ("yum", "nfs-utils")):
        if shutil.which("mount.nfs4"):
            return
        if manager == "apt-get":  # which must be told first what there is
            run([manager, "-q", "update"], may_fail=True, seconds=300)
        run([manager, "-q", "-y", "install", package], may_fail=True, seconds=300)
    if not shutil.which("mount.nfs4"):
        raise Trouble(
            "NFS cannot be mounted",
            "mount.nfs4 is missing, and could not be installed",
            "use an image that has nfs-common, or nfs-utils",
        )


def run(words: list[str], *, may_fail: bool = False, seconds: float = 1800) -> str:
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        done = subprocess.run(
            words, stdin=nothing, stdout=pipe, stderr=pipe, text=True, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        done = subprocess.CompletedProcess(words, 1, "", str(error))
    if done.returncode == 0:
        return done.stdout
    if not may_fail:
        raise Trouble(f"{' '.join(words)} failed", " ".join(done.stderr.split())[-500:])
    return ""


def replace(file: Path, text: str) -> None:
    """Write a file as a whole."""
    draft = file.with_name(f"{file.name}.shoal")
    draft.write_text(text)
    draft.chmod(0o644)
    draft.replace(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
