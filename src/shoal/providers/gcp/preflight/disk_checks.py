"""Preflight checks of boot disks and their images. Pure: records in, findings out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shoal.providers.gcp.preflight.checks import Facts, NodeTypeCheck, Record
from shoal.providers.model import Finding

# The image of Ray's own examples.
DEFAULT_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cpu"
_DEFAULT_DISK = (
    "disks: [{boot: true, autoDelete: true, initializeParams: "
    f"{{diskSizeGb: 50, sourceImage: {DEFAULT_IMAGE}}}}}]"
)
_IMAGE = re.compile(r"(?:projects/([^/]+)/)?global/images/(family/)?([^/]+)$")
_ARM, _X86 = "ARM64", "X86_64"
# The end of an image's name that its family does not have.
_VERSION = re.compile(r"-v\d{8}$")


def image_path(image: str) -> tuple[str, str] | None:
    """The project of an image, empty for the cluster's own, and its path below that; None if the
    name has another form."""
    match = _IMAGE.search(image)
    return (match[1] or "", f"global/images/{match[2] or ''}{match[3]}") if match else None


def source_image(config: Mapping[str, Any]) -> str:
    """The image of an instance's boot disk; empty if it has none."""
    disk = _boot_disk(config) or {}
    return str((disk.get("initializeParams") or {}).get("sourceImage") or "")


def _boot_disk(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Ray and Google take the first disk if none says that it is the boot disk."""
    disks = config.get("disks") or ()
    return next((disk for disk in disks if disk.get("boot")), None)


def check_disks(node_type: NodeTypeCheck) -> list[Finding]:
    """Whether an instance has a disk to boot from."""
    config, at = node_type.config, node_type.at("disks")
    if config.get("sourceMachineImage"):
        return []
    disk = _boot_disk(config)
    if disk is None:
        why = "no disk has boot: true" if config.get("disks") else "node_config has no disks"
        return [Finding("error", f"{node_type.name} has no boot disk", why, _DEFAULT_DISK, at)]
    parameters = disk.get("initializeParams") or {}
    if disk.get("source") or parameters.get("sourceSnapshot"):
        return []
    image = source_image(config)
    if not image:
        what, why = f"the boot disk of {node_type.name} is empty", "it has no sourceImage"
        return [Finding("error", what, why, _DEFAULT_DISK, at)]
    if image_path(image) is None:
        what, why = (
            f"{image} is not the name of an image",
            "it is written as PROJECT's image or family",
        )
        return [Finding("error", what, why, f"sourceImage: {DEFAULT_IMAGE}", at)]
    return []


def check_image(
    node_type: NodeTypeCheck, facts: Facts, images: Mapping[str, Record | None]
) -> list[Finding]:
    """Whether the image of the boot disk exists, is current, and fits the machine type and the
    disk. `images` are Google's records by the name in the file; None for one that is missing."""
    name, at = source_image(node_type.config), node_type.at("disks")
    if name not in images:
        return []
    record = images[name]
    if record is None:
        return [
            Finding(
                "error",
                f"there is no image {_short(name)}",
                why="its project does not have it, or you may not use it",
                fix=f"sourceImage: {_family_of(name) or DEFAULT_IMAGE}",
                at=at,
            )
        ]
    type_record = facts.machine_type(node_type.instance_type) or {}
    needed = type_record.get("architecture") or (_ARM if _is_arm(node_type) else _X86)
    architecture = record.get("architecture") or needed
    if architecture != needed:
        return [
            Finding(
                "error",
                f"the image {_short(name)} is for {architecture}, but {node_type.instance_type} is "
                f"{needed}",
                why="the instance could not boot from it",
                fix=f"sourceImage: {_for_architecture(needed)}",
                at=at,
            )
        ]
    return [*_check_deprecation(name, record, at), *_check_size(node_type, name, record, at)]


def _check_deprecation(name: str, image: Record, at: tuple[str, ...]) -> list[Finding]:
    """A deprecated image still boots; an obsolete one is refused."""
    state = (image.get("deprecated") or {}).get("state", "ACTIVE")
    if state == "ACTIVE":
        return []
    replacement = str((image.get("deprecated") or {}).get("replacement") or "")
    match = re.search(r"projects/.*", replacement)
    newer = match[0] if match else _family_of(name, str(image.get("family") or "")) or DEFAULT_IMAGE
    return [
        Finding(
            "warning" if state == "DEPRECATED" else "error",
            f"the image {_short(name)} is {state.lower()}",
            why="its publisher replaced it by a newer one: it gets no updates"
            if state == "DEPRECATED"
            else "Google creates no disks from it",
            fix=f"sourceImage: {newer}",
            at=at,
        )
    ]


def _check_size(
    node_type: NodeTypeCheck, name: str, image: Record, at: tuple[str, ...]
) -> list[Finding]:
    parameters = (_boot_disk(node_type.config) or {}).get("initializeParams") or {}
    size, least = int(parameters.get("diskSizeGb") or 0), int(image.get("diskSizeGb") or 0)
    if not size or size >= least:
        return []
    what = f"the boot disk of {size} GB is smaller than the image {_short(name)}"
    why = f"the image needs {least} GB"
    return [Finding("error", what, why, f"diskSizeGb: {least}", at)]


def _is_arm(node_type: NodeTypeCheck) -> bool:
    return node_type.instance_type.startswith(("t2a-", "c4a-", "n4a-", "a4x-"))


def _for_architecture(architecture: str) -> str:
    suffix = "-arm64" if architecture == _ARM else ""
    return f"projects/debian-cloud/global/images/family/debian-12{suffix}"


def _family_of(name: str, family: str = "") -> str:
    """The family of an image, which never ends; empty if its name does not show it."""
    path = image_path(name)
    if path is None or "family/" in path[1] or not path[0]:
        return ""
    image = path[1].rpartition("/")[2]
    family = family or (_VERSION.sub("", image) if _VERSION.search(image) else "")
    return f"projects/{path[0]}/global/images/family/{family}" if family else ""


def _short(name: str) -> str:
    return name.partition("/global/images/")[2] or name
