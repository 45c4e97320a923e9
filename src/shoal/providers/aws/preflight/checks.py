"""Preflight checks of regions, zones, instance types, AMIs and spot options. Pure: records in,
findings out.

A fix can be applied literally: a line for the file at the finding's place, a command, or `remove
X`; text after `, or` is an alternative.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from shoal.catalog.price_table import load_price_table
from shoal.core.errors import ConfigError
from shoal.providers.aws import error_codes, launch_config, launch_request, subnets, user_data
from shoal.providers.aws.amis import (
    LATEST_DLAMI,
    RESOLVE_SSM,
    DefaultAmis,
    is_explicit,
    ssm_parameter,
)
from shoal.providers.aws.instance_types import InstanceTypeInfo
from shoal.providers.model import Finding
from shoal.providers.vm import node_type_check
from shoal.spec.cluster_spec import ClusterSpec

_AMAZON_LINUX = ("al2023", "amzn2")
_AMAZON_LINUX_USER = "ec2-user"
_GPU_WORDS = ("gpu", "nvidia", "cuda", "deep learning", "dlami")

_SPOT_OPTIONS = ("InstanceMarketOptions", "SpotOptions")
_PERSISTENT_WHAT = "persistent spot requests relaunch terminated instances"
_PERSISTENT_WHY = (
    "for each one AWS launches another, without Shoal's tags, again and again; down would not find "
    "it"
)
_PERSISTENT_FIX = "remove SpotOptions, or leave only MaxPrice in it"


class NodeTypeCheck(node_type_check.NodeTypeCheck):
    """A node type to check; its configuration is merged with its template."""

    TYPE_KEY = "InstanceType"

    @property
    def instance_type(self) -> str:
        return launch_request.instance_type(self.config)


@dataclass(frozen=True)
class Facts:
    """What AWS reports, as far as it could be read. `zones` are the zones that offer an instance
    type; `images` are AMI records by id, default AMIs included."""

    types: Mapping[str, InstanceTypeInfo] = field(default_factory=dict)
    zones: Mapping[str, Collection[str]] = field(default_factory=dict)
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    default_amis: DefaultAmis | None = None
    now: float = 0.0
    ssh_user: str = ""

    def image_of(self, node_type: NodeTypeCheck) -> Mapping[str, Any] | None:
        """The record of the AMI that a node type uses, if known."""
        name = node_type.config.get("ImageId")
        if is_explicit(name):
            return self.images.get(str(name))
        id = self.default_ami(node_type, name)
        return self.images.get(id) if id else None

    def default_ami(self, node_type: NodeTypeCheck, name: str | None = None) -> str | None:
        """The default AMI of a node type, if known."""
        type_info = self.types.get(node_type.instance_type)
        if type_info is None or self.default_amis is None:
            return None
        in_container = bool(node_type.container_images)
        parameter = ssm_parameter(name, type_info, in_container=in_container)
        try:
            return self.default_amis.ami(parameter) if parameter else None
        except ConfigError:
            return None


def check_region(region: str, known: Collection[str]) -> list[Finding]:
    if region in known:
        return []
    error = error_codes.unknown_region(region, known)
    at = ("provider", "settings", "region")
    return [Finding("error", error.what, error.why, error.fix, at)]


def check_persistent_spot(spec: ClusterSpec) -> list[Finding]:
    """The node types whose `node_config` itself has a persistent spot request."""
    return [
        Finding(
            "error",
            _PERSISTENT_WHAT,
            _PERSISTENT_WHY,
            _PERSISTENT_FIX,
            ("node_types", name, "node_config", *_SPOT_OPTIONS),
        )
        for name, node_type in spec.node_types.items()
        if _is_persistent(node_type.node_config)
    ]


def refuse_persistent_spot(configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `ConfigError` if one of these merged configurations has a persistent spot request."""
    for name, config in configs.items():
        if _is_persistent(config):
            raise ConfigError(
                f"node type {name}: {_PERSISTENT_WHAT}", why=_PERSISTENT_WHY, fix=_PERSISTENT_FIX
            )


def _is_persistent(config: Mapping[str, Any]) -> bool:
    options = (config.get("InstanceMarketOptions") or {}).get("SpotOptions") or {}
    return options.get("SpotInstanceType") == "persistent"


def check_subnets(
    node_type: NodeTypeCheck,
    spec: ClusterSpec,
    records: Sequence[Mapping[str, Any]],
    group_vpcs: Mapping[str, str],
) -> tuple[set[str], list[Finding]]:
    """The zones in which a node type can be launched, and why there are none."""
    try:
        usable = launch_config.subnets_for(spec, node_type.config, records, group_vpcs)
        return {subnet.zone for subnet in usable}, []
    except ConfigError as error:
        at: tuple[str, ...] = ()
        fix = error.fix
        if node_type.config.get("NetworkInterfaces"):
            at = node_type.at("NetworkInterfaces")
        elif launch_request.subnet_ids(node_type.config):
            at = node_type.at("SubnetIds")
        elif launch_request.placement_zone(node_type.config):
            at, fix = node_type.at("Placement"), "remove Placement"
        elif spec.provider.settings.get("availability_zone"):
            at = ("provider", "settings", "availability_zone")
        return set(), [Finding("error", error.what, error.why, fix, at)]


def check_instance_type(
    node_type: NodeTypeCheck, facts: Facts, zones: Collection[str], region: str
) -> list[Finding]:
    """Whether the region has the instance type, and one of these zones offers it."""
    name = node_type.instance_type
    at = node_type.at("InstanceType")
    if name not in facts.types:
        return [
            Finding(
                "error",
                f"there is no instance type {name} in {region}",
                why="EC2 does not list it there",
                fix=f"InstanceType: {_similar_type(name, region)}, or choose another region",
                at=at,
            )
        ]
    offered = sorted(facts.zones.get(name, ()))
    if not zones or set(offered) & set(zones):
        return []
    similar = _similar_type(name, region, exclude_self=True)
    return [
        Finding(
            "error",
            f"{name} is not offered in {', '.join(sorted(zones))}",
            why=f"AWS offers it in {', '.join(offered) or 'no zone of the region'}",
            fix=subnets.zones_setting(offered)
            if offered
            else f"InstanceType: {similar}, or choose another region",
            at=at,
        )
    ]


def _similar_type(name: str, region: str, *, exclude_self: bool = False) -> str:
    """The instance type of the region with the most similar name."""
    names = [
        entry.name
        for entry in load_price_table("aws")
        if region in (entry.prices or {}) and not (exclude_self and entry.name == name)
    ]
    similar = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return similar[0] if similar else launch_request.DEFAULT_TYPE


def check_ami(node_type: NodeTypeCheck, facts: Facts) -> list[Finding]:
    """Whether the AMI that the file names exists, matches the architecture, is current, and has
    the drivers that a GPU needs."""
    name = node_type.config.get("ImageId")
    if not is_explicit(name):
        return []
    type_info = facts.types.get(node_type.instance_type)
    image = facts.images.get(str(name))
    at = node_type.at("ImageId")
    if str(name).startswith(RESOLVE_SSM):
        parameter = str(name).removeprefix(RESOLVE_SSM)
        return [
            Finding(
                "warning",
                f"could not look up the AMI in the SSM parameter {parameter}",
                why="the region does not have it, or you may not read it; EC2 may",
                fix=f"aws ssm get-parameter --name {parameter}",
                at=at,
            )
        ]
    default = facts.default_ami(node_type)
    fix = f"ImageId: {default}" if default else "remove ImageId"
    if image is None:
        return [
            Finding(
                "error",
                f"there is no AMI {name}",
                why="the region does not have it, or the account may not use it",
                fix=f"{fix}, or copy the AMI to the region",
                at=at,
            )
        ]
    architecture = image.get("Architecture")
    if type_info is not None and architecture and architecture != type_info.architecture:
        return [
            Finding(
                "error",
                f"the AMI {name} is for {architecture}, but {type_info.name} is "
                f"{type_info.architecture}",
                why="the instance could not boot from it",
                fix=f"{fix}, or name an AMI for {type_info.architecture}",
                at=at,
            )
        ]
    findings = _check_deprecation(str(name), image, facts.now, fix, at)
    findings += _check_ssh_user(image, facts.ssh_user)
    if type_info is not None and type_info.has_nvidia_gpu and not has_drivers(image):
        findings.append(
            Finding(
                "warning",
                f"the AMI {name} may have no drivers for the GPUs of {type_info.name}",
                why=f"its name is {image.get('Name', 'unknown')!r}",
                fix=f"ImageId: {LATEST_DLAMI}",
                at=at,
            )
        )
    return findings


def _check_ssh_user(image: Mapping[str, Any], ssh_user: str) -> list[Finding]:
    """Amazon Linux authorizes the key of an instance for a user of its own."""
    name = str(image.get("Name") or "").lower()
    is_amazon_linux = name.startswith(_AMAZON_LINUX) or "amazon linux" in name
    if not is_amazon_linux or ssh_user in ("", "root", _AMAZON_LINUX_USER):
        return []
    return [
        Finding(
            "warning",
            f"the AMI is Amazon Linux, where {ssh_user} usually cannot log in",
            why=f"its key pair is authorized for {_AMAZON_LINUX_USER}",
            fix=f"ssh_user: {_AMAZON_LINUX_USER}",
            at=("auth", "ssh_user"),
        )
    ]


def _check_deprecation(
    name: str, image: Mapping[str, Any], now: float, fix: str, at: tuple[str, ...]
) -> list[Finding]:
    """A deprecated AMI still launches."""
    deprecated_at = str(image.get("DeprecationTime") or "")
    if not deprecated_at or deprecated_at > datetime.fromtimestamp(now, timezone.utc).isoformat():
        return []
    return [
        Finding(
            "warning",
            f"the AMI {name} is deprecated since {deprecated_at[:10]}",
            why="its publisher replaced it by a newer one: it gets no updates",
            fix=fix,
            at=at,
        )
    ]


def has_drivers(image: Mapping[str, Any]) -> bool:
    """Whether an AMI seems to have drivers for NVIDIA GPUs."""
    text = f"{image.get('Name', '')} {image.get('Description', '')}".lower()
    return any(word in text for word in _GPU_WORDS)


def check_tags(own: Mapping[str, str]) -> list[Finding]:
    """Whether AWS accepts the file's own tags."""
    invalid = [
        key
        for key, value in own.items()
        if key.lower().startswith("aws:") or not 0 < len(key) <= 128 or len(value) > 256
    ]
    if not invalid:
        return []
    why = "a key has at most 128 characters and does not start with aws:, a value at most 256"
    what = f"AWS does not accept the tag {invalid[0]}"
    return [Finding("error", what, why, f"remove {invalid[0]}", ("shoal", "tags"))]


def check_user_data(node_type: NodeTypeCheck) -> list[Finding]:
    """Whether EC2 accepts the file's user data, together with Shoal's."""
    try:
        user_data.check(str(node_type.config.get("UserData") or ""))
    except ConfigError as error:
        at = node_type.at("UserData")
        return [Finding("error", error.what, error.why, error.fix, at)]
    return []
