"""`shoal.volumes` and `shoal.mounts`: what must hold of them, and what they come to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from shoal.spec.cluster_spec import MountSpec, VolumeSpec
from shoal.spec.draft import Draft
from shoal.spec.problems import did_you_mean

# What a mount there would hide is what the machine lives on.
_SYSTEM = frozenset(
    f"/{name}"
    for name in (
        "", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "proc", "root", "run", "sbin",
        "sys", "tmp", "usr", "var",
    )
)  # fmt: skip
# The names that EC2 leaves to users for volumes beside the root.
_DEVICES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop")
_ONLY_NEW = ("type", "iops", "throughput", "keep")
_S3 = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def check(draft: Draft, provider: str) -> None:
    """Note every mistake in the two sections."""
    _check_places(draft)
    devices: dict[str, str] = {}
    roots: list[str] = []
    for where, volume in draft.get("shoal", "volumes", default={}).items():
        path = ("shoal", "volumes", where)
        _check_volume(draft, provider, path, volume)
        device = volume.get("device", "")
        if device and devices.setdefault(device, where) != where:
            draft.refuse(f"is the device of {devices[device]} as well", *path, "device")
        roots += [where] if volume.get("docker_data_root") else []
        if len(roots) > 1:
            draft.refuse(f"is true of {roots[0]} as well", *path, "docker_data_root")
    new = [v for v in draft.get("shoal", "volumes", default={}).values() if not v.get("device")]
    if len(new) > len(_DEVICES):
        draft.refuse(f"are more than {len(_DEVICES)} new ones", "shoal", "volumes")
    if roots and draft.get("docker", "use_podman"):
        message = "is for Docker; Podman's place is graphroot in its storage.conf"
        draft.refuse(message, "shoal", "volumes", roots[0], "docker_data_root")
    for where, mount in draft.get("shoal", "mounts", default={}).items():
        _check_mount(draft, provider, ("shoal", "mounts", where), mount)


def _check_places(draft: Draft) -> None:
    types = list(draft.get("available_node_types"))
    for section in ("volumes", "mounts"):
        for where, wish in draft.get("shoal", section, default={}).items():
            path = ("shoal", section, where)
            if section == "mounts" and where.startswith(_S3):
                continue
            if not where.startswith("/") or str(PurePosixPath(where)) != where or ".." in where:
                draft.refuse("must be a plain absolute path, like /data", *path)
            elif where in _SYSTEM:
                draft.refuse("is the machine's own; choose a place like /data", *path)
            for name in wish.get("node_types", ()):
                if name not in types:
                    message = f"{name!r} is not among available_node_types"
                    draft.refuse(f"{message}{did_you_mean(name, types)}", *path, "node_types")
    for where in draft.get("shoal", "mounts", default={}):
        if where in draft.get("shoal", "volumes", default={}):
            draft.refuse("is in shoal.volumes as well", "shoal", "mounts", where)


def _check_volume(
    draft: Draft, provider: str, path: tuple[str, ...], volume: Mapping[str, Any]
) -> None:
    device, size = volume.get("device", ""), volume.get("size", 0)
    if device and not device.startswith("/dev/"):
        draft.refuse("must be a device, like /dev/nvme1n1", *path, "device")
    if provider == "aws":
        if not device and not size:
            draft.refuse("needs size, in GiB, for a new volume; or device, for one there is", *path)
    else:
        if not device:
            draft.refuse("needs device: disks can be made on AWS only", *path)
        if size:
            draft.refuse("is for new volumes, which can be made on AWS only", *path, "size")
    for key in _ONLY_NEW:
        if volume.get(key) and not size:
            draft.refuse("is for new volumes: it needs size beside it", *path, key)


def _check_mount(
    draft: Draft, provider: str, path: tuple[str, ...], mount: Mapping[str, Any]
) -> None:
    address = path[-1].startswith(_S3)
    bucket = path[-1][len(_S3) :] if address else mount.get("s3")
    if address and (mount.get("efs") or mount.get("s3")):
        draft.refuse("names a bucket, and needs neither efs nor s3 beside it", *path)
    elif not address and bool(mount.get("efs")) == bool(bucket):
        draft.refuse("needs either efs, a file system's name or id, or s3, a bucket's name", *path)
    elif provider not in ("aws", "unknown"):
        draft.refuse("is for clusters on AWS", *path)
    elif bucket and not _BUCKET.fullmatch(bucket):
        draft.refuse(f"{bucket!r} is no name of a bucket", *path, *([] if address else ["s3"]))


def volumes(draft: Draft, given: Mapping[str, Mapping[str, Any]]) -> dict[str, VolumeSpec]:
    """The volumes by the places they are mounted at. A new one without a device gets the next name
    that is free."""
    taken = {volume.get("device") for volume in given.values()} | _named_by_hand(draft)
    free = (device for device in _DEVICES if device not in taken)
    return {
        where: VolumeSpec(
            **{
                **volume,
                "device": volume.get("device") or next(free),
                "node_types": tuple(volume.get("node_types", ())),
            }
        )
        for where, volume in given.items()
    }


def _named_by_hand(draft: Draft) -> set[Any]:
    """The devices that `node_config` names, which is boto3's own vocabulary."""
    configs = [kind.get("node_config") or {} for kind in draft.get("available_node_types").values()]
    rows = [row for config in configs for row in config.get("BlockDeviceMappings") or ()]
    return {row.get("DeviceName") for row in rows if isinstance(row, Mapping)}


def mounts(given: Mapping[str, Mapping[str, Any]]) -> dict[str, MountSpec]:
    """The shared file systems by the places they are mounted at."""
    return {
        where: MountSpec(
            **{
                **({"s3": where[len(_S3) :]} if where.startswith(_S3) else {}),
                **mount,
                "node_types": tuple(mount.get("node_types", ())),
            }
        )
        for where, mount in given.items()
    }
