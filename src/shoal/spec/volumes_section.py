"""The `shoal.volumes` and `shoal.mounts` sections: their checks and their specs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from shoal.spec.cluster_spec import MountSpec, VolumeSpec
from shoal.spec.problems import did_you_mean
from shoal.spec.spec_draft import Draft

# Mounting here would hide system directories.
_INSTANCE_STORE = "instance-store"
_SYSTEM_DIRECTORIES = frozenset(
    f"/{name}"
    for name in (
        "", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "proc", "root", "run", "sbin",
        "sys", "tmp", "usr", "var",
    )
)  # fmt: skip
# The device names that EC2 recommends for additional volumes.
_DEVICES = tuple(f"/dev/sd{letter}" for letter in "fghijklmnop")
_NEW_VOLUME_KEYS = ("type", "iops", "throughput", "keep")
_S3 = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def check(draft: Draft, provider: str) -> None:
    """Add a problem for every error in the two sections."""
    _check_mount_points(draft)
    devices: dict[str, str] = {}
    data_roots: list[str] = []
    for mount_point, volume in draft.get("shoal", "volumes", default={}).items():
        path = ("shoal", "volumes", mount_point)
        _check_volume(draft, provider, path, volume)
        device = volume.get("device", "")
        if device and devices.setdefault(device, mount_point) != mount_point:
            draft.error(f"is already the device of {devices[device]}", *path, "device")
        data_roots += [mount_point] if volume.get("docker_data_root") else []
        if len(data_roots) > 1:
            message = f"is already set for {data_roots[0]}; only one volume can hold it"
            draft.error(message, *path, "docker_data_root")
    new = [v for v in draft.get("shoal", "volumes", default={}).values() if not v.get("device")]
    if len(new) > len(_DEVICES):
        draft.error(f"has more than {len(_DEVICES)} new volumes, the maximum", "shoal", "volumes")
    if data_roots and draft.get("docker", "use_podman"):
        message = "is only for Docker; for Podman, set graphroot in its storage.conf"
        draft.error(message, "shoal", "volumes", data_roots[0], "docker_data_root")
    for mount_point, mount in draft.get("shoal", "mounts", default={}).items():
        _check_mount(draft, provider, ("shoal", "mounts", mount_point), mount)


def _check_mount_points(draft: Draft) -> None:
    types = list(draft.get("available_node_types"))
    for section in ("volumes", "mounts"):
        for mount_point, entry in draft.get("shoal", section, default={}).items():
            path = ("shoal", section, mount_point)
            if section == "mounts" and mount_point.startswith(_S3):
                continue
            if (
                not mount_point.startswith("/")
                or str(PurePosixPath(mount_point)) != mount_point
                or ".." in mount_point
            ):
                draft.error("must be a plain absolute path, like /data", *path)
            elif mount_point in _SYSTEM_DIRECTORIES:
                draft.error("is a system directory; choose a path like /data", *path)
            for name in entry.get("node_types", ()):
                if name not in types:
                    message = f"{name!r} is not in available_node_types"
                    draft.error(f"{message}{did_you_mean(name, types)}", *path, "node_types")
    for mount_point in draft.get("shoal", "mounts", default={}):
        if mount_point in draft.get("shoal", "volumes", default={}):
            draft.error("is also a mount point in shoal.volumes", "shoal", "mounts", mount_point)


def _check_volume(
    draft: Draft, provider: str, path: tuple[str, ...], volume: Mapping[str, Any]
) -> None:
    device, size = volume.get("device", ""), volume.get("size", 0)
    if device and device != _INSTANCE_STORE and not device.startswith("/dev/"):
        draft.error("must be a device path like /dev/nvme1n1", *path, "device")
    if device == _INSTANCE_STORE and size:
        draft.error("is for new volumes, not for instance stores", *path, "size")
    if provider == "aws":
        if not device and not size:
            draft.error(
                "requires size, in GiB, for a new volume, or device, for an existing one", *path
            )
    else:
        if not device:
            draft.error("requires device: new volumes can only be created on AWS", *path)
        if size:
            draft.error("is for new volumes, which can only be created on AWS", *path, "size")
    for key in _NEW_VOLUME_KEYS:
        if volume.get(key) and not size:
            draft.error("is for new volumes and requires size", *path, key)


def _check_mount(
    draft: Draft, provider: str, path: tuple[str, ...], mount: Mapping[str, Any]
) -> None:
    is_url = path[-1].startswith(_S3)
    bucket = path[-1][len(_S3) :] if is_url else mount.get("s3")
    if is_url and (mount.get("efs") or mount.get("s3")):
        draft.error("is a bucket URL and must not set efs or s3", *path)
    elif not is_url and bool(mount.get("efs")) == bool(bucket):
        draft.error(
            "requires either efs, the name or id of a file system, or s3, the name of a bucket",
            *path,
        )
    elif provider not in ("aws", "unknown"):
        draft.error("is only supported on AWS", *path)
    elif bucket and not _BUCKET.fullmatch(bucket):
        draft.error(f"{bucket!r} is not a valid bucket name", *path, *([] if is_url else ["s3"]))


def volumes(draft: Draft, section: Mapping[str, Mapping[str, Any]]) -> dict[str, VolumeSpec]:
    """The volumes by mount point. A new volume without a device gets the next free device name."""
    used = {volume.get("device") for volume in section.values()} | _devices_in_node_configs(draft)
    free = (device for device in _DEVICES if device not in used)
    return {
        mount_point: VolumeSpec(
            **{
                **volume,
                "device": volume.get("device") or next(free),
                "node_types": tuple(volume.get("node_types", ())),
            }
        )
        for mount_point, volume in section.items()
    }


def _devices_in_node_configs(draft: Draft) -> set[Any]:
    """The devices in `BlockDeviceMappings` of any `node_config`."""
    types = draft.get("available_node_types").values()
    configs = [node_type.get("node_config") or {} for node_type in types]
    mappings = [entry for config in configs for entry in config.get("BlockDeviceMappings") or ()]
    return {entry.get("DeviceName") for entry in mappings if isinstance(entry, Mapping)}


def mounts(section: Mapping[str, Mapping[str, Any]]) -> dict[str, MountSpec]:
    """The shared file systems by mount point."""
    return {
        mount_point: MountSpec(
            **{
                **({"s3": mount_point[len(_S3) :]} if mount_point.startswith(_S3) else {}),
                **mount,
                "node_types": tuple(mount.get("node_types", ())),
            }
        )
        for mount_point, mount in section.items()
    }
