"""What AWS's own words about an account mean for a cluster file: places, machines, images and
disks. Pure: records in, findings out.

A fix is written so that it can be done as it stands: a line for the file at the finding's place, a
command, or `take X out`; what comes after `, or` is another way.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.catalog.price_table import load_price_table
from shoal.core.errors import ConfigError
from shoal.providers.aws import error_codes, launch_config, launch_request, network
from shoal.providers.aws.amis import LATEST_DLAMI, Defaults, is_named, parameter_for
from shoal.providers.aws.instance_types import MachineType
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_GPU_WORDS = ("gpu", "nvidia", "cuda", "deep learning", "dlami")
_GIB = 2**30
# What is on a root volume before anything is pulled: a plain system, and the part of an image full
# of drivers and frameworks that it usually takes.
_SYSTEM_GIB = 2.0
_FULL_SHARE = 0.9
# Layers take about twice as much room unpacked as packed.
_UNPACKED = 2.0
_USUAL_ROOT = "/dev/sda1"


@dataclass(frozen=True)
class NodeTypeCheck:
    """A node type of the file: its configuration with its template, and where it stands. `housed`
    are the images of its containers, with their places in the file. `fallback` are the instance
    types that may stand in for its own, and `on_demand_too` says whether another market may."""

    name: str
    config: Mapping[str, Any]
    min_workers: int
    is_head: bool
    housed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fallback: tuple[str, ...] = ()
    on_demand_too: bool = False

    def at(self, *keys: str) -> tuple[str, ...]:
        return ("node_types", self.name, "node_config", *keys)

    @property
    def instance_type(self) -> str:
        return launch_request.instance_type(self.config)

    @property
    def choices(self) -> list[NodeTypeCheck]:
        """The kind as it is wished for, and as it may be instead."""
        others = [{**self.config, "InstanceType": name} for name in self.fallback]
        return [self, *(replace(self, config=config) for config in others)]

    @property
    def fewest(self) -> int:
        """So many are asked for at once."""
        return self.min_workers + self.is_head


@dataclass(frozen=True)
class Facts:
    """What AWS said. Images are by their id; what a kind starts from by default is among them."""

    types: Mapping[str, MachineType] = field(default_factory=dict)
    offered: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The zones of the region in which a type is offered."""
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Defaults | None = None

    def image_of(self, kind: NodeTypeCheck) -> Mapping[str, Any] | None:
        """The image that a kind starts from, as far as it is known."""
        named = kind.config.get("ImageId")
        if is_named(named):
            return self.images.get(str(named))
        id = self.default_image(kind, named)
        return self.images.get(id) if id else None

    def default_image(self, kind: NodeTypeCheck, named: str | None = None) -> str | None:
        """The image for a kind whose file leaves it to us, as far as it is known."""
        machine = self.types.get(kind.instance_type)
        if machine is None or self.defaults is None:
            return None
        parameter = parameter_for(named, machine, in_container=bool(kind.housed))
        try:
            return self.defaults.image(parameter) if parameter else None
        except ConfigError:
            return None


def of_region(region: str, known: Collection[str]) -> list[Finding]:
    if region in known:
        return []
    error = error_codes.no_region(region, known)
    at = ("provider", "settings", "region")
    return [Finding("error", error.what, error.why, error.fix, at)]


def of_subnets(
    kind: NodeTypeCheck, spec: ClusterSpec, known: Sequence[Mapping[str, Any]]
) -> tuple[set[str], list[Finding]]:
    """The zones in which a kind can be put, and why there are none."""
    try:
        return {subnet.zone for subnet in launch_config.subnets_for(spec, kind.config, known)}, []
    except ConfigError as error:
        at: tuple[str, ...] = ()
        fix = error.fix
        if launch_request.own_subnets(kind.config):
            at = kind.at("SubnetIds")
        elif launch_request.own_zone(kind.config):
            at, fix = kind.at("Placement"), "take Placement out"
        elif spec.provider.settings.get("availability_zone"):
            at = ("provider", "settings", "availability_zone")
        return set(), [Finding("error", error.what, error.why, fix, at)]


def of_choices(
    kind: NodeTypeCheck, judge: Callable[[NodeTypeCheck], list[Finding]]
) -> list[Finding]:
    """What is to be said of the machine that is wished for, and of those that may stand in for
    it. As long as one of them will do, nothing of that keeps the kind from coming up."""
    wished, *others = [judge(choice) for choice in kind.choices]
    told = list(wished)
    if not all(any(f.severity == "error" for f in found) for found in (wished, *others)):
        told = [replace(finding, severity="warning") for finding in wished]
    said = {finding.what for finding in wished}
    for name, found in zip(kind.fallback, others, strict=True):
        told += [
            Finding(
                "warning",
                finding.what,
                finding.why,
                fix=f"take {name} out of shoal.fallback",
                at=("shoal", "fallback", kind.name),
            )
            for finding in found
            if finding.what not in said
        ]
    return told


def of_type(
    kind: NodeTypeCheck, facts: Facts, zones: Collection[str], region: str
) -> list[Finding]:
    """Whether AWS has the machine, and where."""
    name = kind.instance_type
    at = kind.at("InstanceType")
    if name not in facts.types:
        return [
            Finding(
                "error",
                f"there is no instance type {name} in {region}",
                why="AWS does not list it there",
                fix=f"InstanceType: {_close_type(name, region)}, or choose another region",
                at=at,
            )
        ]
    there = sorted(facts.offered.get(name, ()))
    if not zones or set(there) & set(zones):
        return []
    return [
        Finding(
            "error",
            f"{name} is not offered in {', '.join(sorted(zones))}",
            why=f"AWS has it in {', '.join(there) or 'no zone of the region'}",
            fix=network.in_zones(there)
            if there
            else f"InstanceType: {_close_type(name, region, other=True)}, or choose another region",
            at=at,
        )
    ]


def _close_type(name: str, region: str, *, other: bool = False) -> str:
    """A machine that the region sells and whose name is most like this one."""
    sold = [
        entry.name
        for entry in load_price_table("aws")
        if region in (entry.prices or {}) and not (other and entry.name == name)
    ]
    close = difflib.get_close_matches(name, sold, n=1, cutoff=0.5)
    return close[0] if close else launch_request.DEFAULT_TYPE


def of_image(kind: NodeTypeCheck, facts: Facts) -> list[Finding]:
    """Whether the image that the file names is there, fits the processor, and has the drivers that
    a GPU needs."""
    name = kind.config.get("ImageId")
    if not is_named(name):
        return []
    machine = facts.types.get(kind.instance_type)
    image = facts.images.get(str(name))
    at = kind.at("ImageId")
    instead = facts.default_image(kind)
    fix = f"ImageId: {instead}" if instead else "take ImageId out"
    if image is None:
        return [
            Finding(
                "error",
                f"there is no image {name}",
                why="the region does not have it, or the account may not use it",
                fix=f"{fix}, or copy the image to the region",
                at=at,
            )
        ]
    theirs = image.get("Architecture")
    if machine is not None and theirs and theirs != machine.architecture:
        return [
            Finding(
                "error",
                f"the image {name} is for {theirs}, and {machine.name} is {machine.architecture}",
                why="the machine could not start from it",
                fix=f"{fix}, or name an image for the processor",
                at=at,
            )
        ]
    if machine is not None and machine.has_nvidia and not _has_drivers(image):
        return [
            Finding(
                "warning",
                f"the image {name} may have no drivers for the GPUs of {machine.name}",
                why=f"its name is {image.get('Name', 'not known')!r}",
                fix=f"ImageId: {LATEST_DLAMI}",
                at=at,
            )
        ]
    return []


def _has_drivers(image: Mapping[str, Any]) -> bool:
    words = f"{image.get('Name', '')} {image.get('Description', '')}".lower()
    return any(word in words for word in _GPU_WORDS)


def of_root_volume(kind: NodeTypeCheck, facts: Facts) -> list[Finding]:
    """Whether the image's snapshot fits the root volume that the file asks for."""
    image = facts.image_of(kind) or {}
    needed, asked = _snapshot_gib(image), _asked_gib(kind, image)
    if needed is None or asked is None or asked >= needed:
        return []
    return [
        Finding(
            "error",
            f"the root volume of {asked} GiB is smaller than the image's {needed} GiB",
            why="AWS refuses such a machine",
            fix=_larger(kind, image, needed),
            at=kind.at("BlockDeviceMappings"),
        )
    ]


def of_container_room(
    kind: NodeTypeCheck, facts: Facts, room: Mapping[str, int | None]
) -> list[Finding]:
    """Whether the images of containers fit on the root volume, where their registries say how
    large they are. `room` is the least that each takes, in bytes."""
    image = facts.image_of(kind) or {}
    volume = _asked_gib(kind, image) or _snapshot_gib(image)
    largest = max(kind.housed, key=lambda name: room.get(name) or 0, default="")
    needed = (room.get(largest) or 0) / _GIB
    if volume is None or not needed:
        return []
    own = _SYSTEM_GIB
    if _has_drivers(image):
        own = _FULL_SHARE * (_snapshot_gib(image) or 0)
    if _UNPACKED * needed + own <= volume:
        return []
    enough = 10 * math.ceil((own + (1 + _UNPACKED) * needed) / 10)
    return [
        Finding(
            "error" if needed + _SYSTEM_GIB > volume else "warning",
            f"the image {largest} {_verdict(needed, volume)} a root volume of {volume} GiB",
            why=f"pulling it takes at least {needed:.1f} GiB, and usually twice that; the system "
            f"itself has about {own:.0f} GiB",
            fix=_larger(kind, image, enough),
            at=kind.at("BlockDeviceMappings"),
        )
    ]


def _verdict(needed: float, volume: int) -> str:
    return "does not fit on" if needed + _SYSTEM_GIB > volume else "may not fit on"


def _root_name(kind: NodeTypeCheck, image: Mapping[str, Any]) -> str:
    named = [m.get("DeviceName") for m in kind.config.get("BlockDeviceMappings") or ()]
    guess = named[0] if len(named) == 1 else _USUAL_ROOT
    return str(image.get("RootDeviceName") or guess)


def _larger(kind: NodeTypeCheck, image: Mapping[str, Any], gib: int) -> str:
    """The line that gives a kind a root volume of this size."""
    if _asked_gib(kind, image) is not None:
        return f"VolumeSize: {gib}"
    root = _root_name(kind, image)
    return f"BlockDeviceMappings: [{{DeviceName: {root}, Ebs: {{VolumeSize: {gib}}}}}]"


def _snapshot_gib(image: Mapping[str, Any]) -> int | None:
    return _size(image.get("BlockDeviceMappings") or (), image.get("RootDeviceName"))


def _asked_gib(kind: NodeTypeCheck, image: Mapping[str, Any]) -> int | None:
    return _size(kind.config.get("BlockDeviceMappings") or (), _root_name(kind, image))


def _size(mappings: Sequence[Mapping[str, Any]], device: Any) -> int | None:
    for mapping in mappings:
        size = (mapping.get("Ebs") or {}).get("VolumeSize")
        if mapping.get("DeviceName") == device and size is not None:
            return int(size)
    return None
