"""Mounts the volumes and shared file systems of a node. Formats a blank volume first; never formats
a device that holds any data.

This file is piped to Python 3 on the node and runs as root, so it must not import Shoal.
`bootstrap.volumes` reads its output. It can be repeated.

    python3 - '[{"kind": "volume", "path": "/data", "device": "/dev/sdf", ...}, ...]'
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

EXIT_MOUNT_ERROR = 70
# In place of a device: a disk that is part of the instance.
INSTANCE_STORE = "instance-store"
_STORE_MODEL = "Amazon EC2 NVMe Instance Storage"
# Where AWS's Deep Learning AMIs mount all instance stores, joined to one.
_DLAMI_STORE = Path("/opt/dlami/nvme")
_FSTAB = Path("/etc/fstab")
_DOCKER_SETTINGS = Path("/etc/docker/daemon.json")
_MARK = "# shoal"
# How the kernel and fstab escape spaces and backslashes.
_ESCAPED = re.compile(r"\\([0-7]{3})")
# A cloud attaches a volume while the instance boots.
_DEVICE_SECONDS = 90.0
_EDGE_BYTES = 1 << 20
_GIB = 1 << 30
# As AWS recommends for EFS.
_NFS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"


class MountError(Exception):
    """Why something cannot be mounted, for the user."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.fields = {"what": what, "why": why, "fix": fix}


def main(requests: str) -> None:
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    mount = {"volume": mount_volume, "efs": mount_efs, "s3": mount_s3}
    try:
        for request in json.loads(requests):
            mount[request["kind"]](request)
    except MountError as error:
        print(json.dumps(error.fields))
        sys.exit(EXIT_MOUNT_ERROR)


def mount_volume(request: dict[str, Any]) -> None:
    path = Path(request["path"])
    if request["device"] == INSTANCE_STORE:
        if not mounted_at(path) and mounted_at(_DLAMI_STORE):
            bind(_DLAMI_STORE, path)
        if mounted_at(path):
            finish_volume(request)
            return
    device = wait_for_device(request["device"])
    if mounted_at(path) != number_of(device):
        check_mount_point(path)
        check_unused(device)
        kind = filesystem_on(device)
        if kind is None:
            kind = request["filesystem"]
            check_size(device, request["size"])
            make_filesystem(device, kind)
        path.mkdir(parents=True, exist_ok=True)
        run(["mount", "-t", kind, str(device), str(path)])
        uuid = run(["blkid", "-p", "-s", "UUID", "-o", "value", str(device)]).strip()
        add_to_fstab(path, f"UUID={uuid}", kind, "defaults,nofail", "0 2")
    finish_volume(request)


def finish_volume(request: dict[str, Any]) -> None:
    path = Path(request["path"])
    set_owner(request["owner"], path)
    if request["docker_data_root"]:
        set_docker_root(path / "docker")


def bind(source: Path, path: Path) -> None:
    check_mount_point(path)
    path.mkdir(parents=True, exist_ok=True)
    run(["mount", "--bind", str(source), str(path)])
    add_to_fstab(path, str(source), "none", "bind,nofail", "0 0")


def mount_efs(request: dict[str, Any]) -> None:
    path, source = Path(request["path"]), request["source"]
    if mounted_at(path):
        return
    check_mount_point(path)
    kind, options = "nfs4", f"{_NFS},{'ro' if request['read_only'] else 'rw'}"
    if request.get("tls"):
        # Amazon's mount helper, which encrypts the traffic, takes the id of the file system.
        install("mount.efs", {"dnf": "amazon-efs-utils", "yum": "amazon-efs-utils"})
        kind, options = "efs", f"tls,{'ro' if request['read_only'] else 'rw'}"
        source = f"{source.partition('.')[0]}:/"
    else:
        packages = {"apt-get": "nfs-common", "dnf": "nfs-utils", "yum": "nfs-utils"}
        install("mount.nfs4", packages)
    path.mkdir(parents=True, exist_ok=True)
    try:
        run(["mount", "-t", kind, "-o", options, source, str(path)], seconds=60)
    except MountError as error:
        raise MountError(
            f"could not mount {source}",
            error.fields["why"],
            "check that the file system has a mount target in the cluster's network, and that its "
            "security group allows port 2049 from the nodes",
        ) from None
    add_to_fstab(path, source, kind, f"{options},_netdev,nofail", "0 0")


def mount_s3(request: dict[str, Any]) -> None:
    path = Path(request["path"])
    if mounted_at(path):
        return
    check_mount_point(path)
    if shutil.which("mount-s3") is None:
        raise MountError(
            f"could not mount the bucket {request['bucket']}",
            "mount-s3 is not installed",
            "use an image that has it, or install it in initialization_commands: "
            "https://github.com/awslabs/mountpoint-s3",
        )
    path.mkdir(parents=True, exist_ok=True)
    owner = pwd.getpwnam(request["owner"])
    argv = ["mount-s3", request["bucket"], str(path), "--allow-other"]
    argv += [f"--uid={owner.pw_uid}", f"--gid={owner.pw_gid}"]
    argv += ["--read-only"] if request["read_only"] else ["--allow-delete", "--allow-overwrite"]
    run(argv, seconds=60)


# Devices


def wait_for_device(name: str) -> Path:
    """The device with this name, once it is attached."""
    deadline = time.monotonic() + _DEVICE_SECONDS
    while True:
        device = device_named(name)
        if device is not None:
            return device
        if time.monotonic() > deadline:
            disks = run(["lsblk", "-dno", "NAME,SIZE"], may_fail=True).splitlines()
            raise MountError(
                f"no disk {name}",
                "the disks are " + ", ".join(" of ".join(row.split()) for row in disks),
                "correct the device under shoal.volumes, or attach the disk",
            )
        time.sleep(0.5)


def device_named(name: str) -> Path | None:
    """A cloud's name for a disk may differ from the kernel's: xvdf for sdf, or a name that only
    the controller of an NVMe disk reports."""
    if name == INSTANCE_STORE:
        return next(filter(is_unused, instance_stores()), None)
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


def instance_stores(block_devices: Path = Path("/sys/class/block")) -> list[Path]:
    """The NVMe disks that are the instance's own, by their model: their numbers change with the
    volumes that are attached."""
    models = sorted(block_devices.glob("nvme[0-9]*n1/device/model"))
    stores = [model for model in models if model.read_text().strip() == _STORE_MODEL]
    return [Path("/dev", model.parents[1].name) for model in stores]


def is_unused(device: Path) -> bool:
    try:
        check_unused(device)
    except MountError:
        return False
    return True


def ebs_name(disk: Path) -> str:
    """The name, without /dev/, that EC2 attached an NVMe disk as; empty for any other disk."""
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
    """The same, from the identify page of an NVMe controller."""
    if not page[24:64].startswith(b"Amazon Elastic Block Store"):
        return ""
    name = page[3072:3104].split(b"\0")[0].decode(errors="replace").strip()
    return name[len("/dev/") :] if name.startswith("/dev/") else name


# Content


def filesystem_on(device: Path) -> str | None:
    """The type of the file system on a device, or None for a blank device. Raises `MountError` for
    any other content."""
    argv = ["blkid", "-p", "-o", "export", str(device)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    facts = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if facts.get("USAGE") == "filesystem" and "TYPE" in facts:
        return facts["TYPE"]
    if "PTTYPE" in facts or any(sysfs(device).glob(f"{device.name}*")):
        raise not_blank(device, "a partition table", "name one of its partitions; or, ")
    if "TYPE" in facts:
        raise not_blank(device, facts["TYPE"])
    # blkid exits with 2 if it recognizes nothing on the device.
    if done.returncode != 2 or not has_zero_edges(device):
        raise not_blank(device, "data that is not a known file system")
    return None


def not_blank(device: Path, holds: str, other_way: str = "") -> MountError:
    wipe = f"sudo wipefs -a {device} && sudo blkdiscard -z {device}"
    return MountError(
        f"cannot format {device}: it holds {holds}",
        "only a blank disk is formatted",
        f"{other_way}if its data is not needed: {wipe}",
    )


def has_zero_edges(device: Path) -> bool:
    with device.open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        for start in (0, max(0, size - _EDGE_BYTES)):
            file.seek(start)
            if file.read(_EDGE_BYTES).strip(b"\0"):
                return False
    return True


def check_size(device: Path, gib: int) -> None:
    """Refuse a blank disk of another size than the cluster file says: it may be the wrong disk."""
    with device.open("rb", buffering=0) as file:
        actual = file.seek(0, os.SEEK_END) / _GIB
    if gib and abs(actual - gib) > 0.01 * gib:
        raise MountError(
            f"{device} has {actual:.1f} GiB, expected {gib}",
            "it may be the wrong disk, so it is not formatted",
            "correct size or device under shoal.volumes",
        )


def make_filesystem(device: Path, kind: str) -> None:
    if shutil.which(f"mkfs.{kind}") is None:
        package = {"xfs": "xfsprogs"}.get(kind, "e2fsprogs")
        raise MountError(
            f"mkfs.{kind} is missing",
            f"it is needed to format {device} with {kind}",
            f"use an image that has {package}, or another filesystem under shoal.volumes",
        )
    run(["mkfs", "-t", kind, str(device)])


# Mount points


def sysfs(device: Path) -> Path:
    return Path("/sys/class/block", device.name)


def number_of(device: Path) -> str:
    number = device.stat().st_rdev
    return f"{os.major(number)}:{os.minor(number)}"


def mounts() -> list[tuple[str, Path]]:
    """The mounts: device numbers and mount points."""
    rows = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [(row[2], Path(_ESCAPED.sub(lambda m: chr(int(m[1], 8)), row[4]))) for row in rows]


def mounted_at(path: Path) -> str:
    """The device number of the mount at this path; empty if nothing is mounted there."""
    return next((number for number, mount_point in reversed(mounts()) if mount_point == path), "")


def check_unused(device: Path) -> None:
    holders = sysfs(device) / "holders"
    users = [str(mount_point) for number, mount_point in mounts() if number == number_of(device)]
    users += [other.name for other in holders.glob("*")]
    if users:
        raise MountError(
            f"{device} is in use by {users[0]}",
            fix="correct the device under shoal.volumes, or free it",
        )


def check_mount_point(path: Path) -> None:
    """Refuse a mount point where a mount would hide something."""
    if mounted_at(path):
        raise MountError(f"something else is mounted at {path}", fix=f"sudo umount {path}")
    if path.is_dir() and any(path.iterdir()):
        raise MountError(
            f"{path} is not empty",
            "a mount would hide its content",
            "move the content, or use another mount point",
        )


def add_to_fstab(path: Path, source: str, kind: str, options: str, checks: str) -> None:
    """Mount again after a reboot. A line in fstab for the same mount point that Shoal did not write
    is left alone."""
    mount_point = str(path).replace("\\", "\\134").replace(" ", "\\040")
    lines = _FSTAB.read_text().splitlines() if _FSTAB.exists() else []
    same = [line for line in lines if line.split()[1:2] == [mount_point]]
    if all(line.endswith(_MARK) for line in same):
        kept = [line for line in lines if line not in same]
        replace(
            _FSTAB,
            "\n".join([*kept, f"{source} {mount_point} {kind} {options} {checks} {_MARK}", ""]),
        )


def set_owner(owner: str, path: Path) -> None:
    """Make a user the owner of an empty file system."""
    if {entry.name for entry in path.iterdir()} <= {"lost+found"}:
        user = pwd.getpwnam(owner)
        os.chown(path, user.pw_uid, user.pw_gid)


# Docker and mount programs


def set_docker_root(root: Path) -> None:
    """Make Docker store images and containers there; keep its other settings."""
    try:
        text = _DOCKER_SETTINGS.read_text() if _DOCKER_SETTINGS.exists() else "{}"
        settings = json.loads(text)
    except ValueError:
        raise MountError(
            f"{_DOCKER_SETTINGS} is not JSON", fix="correct it\nshoal up CLUSTER"
        ) from None
    if settings.get("data-root") != str(root):
        _DOCKER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        new_settings = {**settings, "data-root": str(root)}
        replace(_DOCKER_SETTINGS, json.dumps(new_settings, indent=2) + "\n")
    used = docker_root()
    if used in ("", str(root)):
        return  # Docker reads its settings when it starts
    run(["systemctl", "restart", "docker"], may_fail=True)
    if docker_root() != str(root):
        raise MountError(
            f"Docker still stores its data in {used}",
            f"it must be restarted to use {root}, and `systemctl restart docker` failed",
            "restart it\nshoal up CLUSTER",
        )


def docker_root() -> str:
    """Where Docker stores its data; empty if it does not run."""
    return run(["docker", "info", "-f", "{{.DockerRootDir}}"], may_fail=True).strip()


def install(program: str, packages: dict[str, str]) -> None:
    """Install the package of a mount program, by package manager, if the program is missing."""
    for manager, package in packages.items():
        if shutil.which(program):
            return
        if manager == "apt-get":  # needs its package lists first
            run([manager, "-q", "update"], may_fail=True, seconds=300)
        run([manager, "-q", "-y", "install", package], may_fail=True, seconds=300)
    if not shutil.which(program):
        names = " or ".join(dict.fromkeys(packages.values()))
        raise MountError(
            "cannot mount EFS",
            f"{program} is missing and could not be installed",
            f"install {names} in initialization_commands, or use an image that has it",
        )


def run(argv: list[str], *, may_fail: bool = False, seconds: float = 1800) -> str:
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        done = subprocess.run(
            argv, stdin=nothing, stdout=pipe, stderr=pipe, text=True, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        done = subprocess.CompletedProcess(argv, 1, "", str(error))
    if done.returncode == 0:
        return done.stdout
    if not may_fail:
        raise MountError(f"{' '.join(argv)} failed", " ".join(done.stderr.split())[-500:])
    return ""


def replace(file: Path, text: str) -> None:
    """Replace a file atomically."""
    new = file.with_name(f"{file.name}.shoal")
    new.write_text(text)
    new.chmod(0o644)
    new.replace(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
