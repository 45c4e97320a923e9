"""Preflight checks of root volumes: their size, their device, and whether container images fit on
them. Pure: records in, findings out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.providers.aws import ebs
from shoal.providers.aws.preflight.checks import Facts, NodeTypeCheck, has_drivers
from shoal.providers.model import Finding

_GIB = 2**30
# What a root volume holds before anything is pulled: a plain system, or, for an AMI full of drivers
# and frameworks, the usual share of its snapshot.
_SYSTEM_GIB = 2.0
_USED_SHARE = 0.9
# Layers take about twice their compressed size when unpacked.
_UNPACKED_RATIO = 2.0
_USUAL_ROOT = "/dev/sda1"
_ROOT_DEVICES = ("/dev/sda1", "/dev/sda", "/dev/xvda", "/dev/xvda1")


def check_root_volume(node_type: NodeTypeCheck, facts: Facts) -> list[Finding]:
    """Whether the AMI's snapshot fits on the root volume that the file configures."""
    image = facts.image_of(node_type) or {}
    needed, configured = _snapshot_gib(image), _configured_gib(node_type, image)
    if needed is None or configured is None or configured >= needed:
        return []
    return [
        Finding(
            "error",
            f"the root volume of {configured} GiB is smaller than the AMI's {needed} GiB",
            why="AWS refuses to launch such an instance",
            fix=_larger_volume(node_type, image, needed),
            at=node_type.at("BlockDeviceMappings"),
        )
    ]


def check_container_images(
    node_type: NodeTypeCheck, facts: Facts, sizes: Mapping[str, int | None]
) -> list[Finding]:
    """Whether the container images fit on the root volume. `sizes` are the least bytes that each
    takes, where its registry reports them."""
    image = facts.image_of(node_type) or {}
    volume = _root_gib(node_type, image)
    largest = max(node_type.container_images, key=lambda name: sizes.get(name) or 0, default="")
    needed = (sizes.get(largest) or 0) / _GIB
    if volume is None or not needed:
        return []
    used = _SYSTEM_GIB
    if has_drivers(image):
        used = _USED_SHARE * (_snapshot_gib(image) or 0)
    if _UNPACKED_RATIO * needed + used <= volume:
        return []
    enough = 10 * math.ceil((used + (1 + _UNPACKED_RATIO) * needed) / 10)
    is_impossible = needed + _SYSTEM_GIB > volume
    return [
        Finding(
            "error" if is_impossible else "warning",
            f"the image {largest} {'does' if is_impossible else 'may'} not fit on a root volume of "
            f"{volume} GiB",
            why=f"pulling it takes at least {needed:.1f} GiB, and usually twice that; the system "
            f"itself uses about {used:.0f} GiB",
            fix=_larger_volume(node_type, image, enough),
            at=node_type.at("BlockDeviceMappings"),
        )
    ]


def _root_device(node_type: NodeTypeCheck, image: Mapping[str, Any]) -> str:
    devices = [m.get("DeviceName") for m in node_type.config.get("BlockDeviceMappings") or ()]
    guess = devices[0] if len(devices) == 1 else _USUAL_ROOT
    return str(image.get("RootDeviceName") or guess)


def _root_gib(node_type: NodeTypeCheck, image: Mapping[str, Any]) -> int | None:
    """The size of the root volume: as configured, else the default, else the AMI's own."""
    mappings = node_type.config.get("BlockDeviceMappings") or ()
    default = ebs.default_root_volume(image, mappings)
    configured = _configured_gib(node_type, image)
    return configured or (default["Ebs"]["VolumeSize"] if default else _snapshot_gib(image))


def check_root_device(node_type: NodeTypeCheck, facts: Facts) -> list[Finding]:
    """Whether a volume that is meant for the root is at the AMI's root device."""
    image = facts.image_of(node_type) or {}
    root = image.get("RootDeviceName")
    devices = [m.get("DeviceName") for m in node_type.config.get("BlockDeviceMappings") or ()]
    meant = [device for device in devices if device in _ROOT_DEVICES]
    if not root or root in devices or not meant:
        return []
    return [
        Finding(
            "warning",
            f"{meant[0]} is not the root device of the AMI, {root} is",
            why="the instance gets a second, empty volume of that size",
            fix=f"DeviceName: {root}",
            at=node_type.at("BlockDeviceMappings"),
        )
    ]


def _larger_volume(node_type: NodeTypeCheck, image: Mapping[str, Any], gib: int) -> str:
    """The line that gives a node type a root volume of this size."""
    if _configured_gib(node_type, image) is not None:
        return f"VolumeSize: {gib}"
    root = _root_device(node_type, image)
    return f"BlockDeviceMappings: [{{DeviceName: {root}, Ebs: {{VolumeSize: {gib}}}}}]"


def _snapshot_gib(image: Mapping[str, Any]) -> int | None:
    return ebs.snapshot_gib(image) or None


def _configured_gib(node_type: NodeTypeCheck, image: Mapping[str, Any]) -> int | None:
    mappings = node_type.config.get("BlockDeviceMappings") or ()
    return _volume_size(mappings, _root_device(node_type, image))


def _volume_size(mappings: Sequence[Mapping[str, Any]], device: Any) -> int | None:
    for mapping in mappings:
        size = (mapping.get("Ebs") or {}).get("VolumeSize")
        if mapping.get("DeviceName") == device and size is not None:
            return int(size)
    return None
