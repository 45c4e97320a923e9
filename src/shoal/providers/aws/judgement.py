"""What AWS's own words about an account mean for a cluster file. Pure: records in, findings out."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ShoalError
from shoal.providers.aws import launch
from shoal.providers.aws.types import MachineType
from shoal.providers.base import Finding

_SSH = 22
_GPU_WORDS = ("gpu", "nvidia", "cuda", "deep learning", "dlami")


@dataclass(frozen=True)
class Kind:
    """A node type of the file: its configuration with its template, and where it stands."""

    name: str
    config: Mapping[str, Any]
    min_workers: int
    is_head: bool

    def at(self, *keys: str) -> tuple[str, ...]:
        return ("node_types", self.name, "node_config", *keys)

    @property
    def instance_type(self) -> str:
        return launch.instance_type(self.config)

    @property
    def fewest(self) -> int:
        """So many are asked for at once."""
        return self.min_workers + self.is_head


@dataclass(frozen=True)
class Facts:
    """What AWS said. Images, key pairs and groups are by the name that the file has."""

    types: Mapping[str, MachineType] = field(default_factory=dict)
    offered: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The zones of the region in which a type is offered."""
    images: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    key_pairs: Collection[str] = ()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def as_finding(error: ShoalError, at: tuple[str, ...] = ()) -> Finding:
    """A refusal, told as something that was found."""
    return Finding("error", error.what, error.why, error.fix, at)


def of_region(region: str, known: Collection[str]) -> list[Finding]:
    if region in known:
        return []
    close = difflib.get_close_matches(region, known, n=1)
    return [
        Finding(
            "error",
            f"there is no region {region}",
            why="boto3 does not know it; a newer one may",
            fix=f"provider: {{region: {close[0] if close else 'us-west-2'}}}",
            at=("provider", "settings", "region"),
        )
    ]


def of_type(kind: Kind, facts: Facts, zones: Collection[str], region: str) -> list[Finding]:
    """Whether AWS has the machine, and where."""
    name = kind.instance_type
    at = kind.at("InstanceType")
    if name not in facts.types:
        return [
            Finding(
                "error",
                f"there is no instance type {name} in {region}",
                why="AWS does not list it there",
                fix="correct InstanceType, or choose another region",
                at=at,
            )
        ]
    there = facts.offered.get(name, ())
    if not zones or set(there) & set(zones):
        return []
    return [
        Finding(
            "error",
            f"{name} is not offered in {', '.join(sorted(zones))}",
            why=f"AWS has it in {', '.join(sorted(there)) or 'no zone of the region'}",
            fix=f"provider: {{availability_zone: {','.join(sorted(there))}}}"
            if there
            else "choose another InstanceType or region",
            at=at,
        )
    ]


def of_image(kind: Kind, facts: Facts) -> list[Finding]:
    """Whether the image that the file names is there, fits the processor, has the drivers that a
    GPU needs, and fits the disk that is asked for."""
    name = kind.config.get("ImageId")
    machine = facts.types.get(kind.instance_type)
    if not name or name == "latest_dlami":
        return []
    image = facts.images.get(name)
    at = kind.at("ImageId")
    if image is None:
        return [
            Finding(
                "error",
                f"there is no image {name}",
                why="the region does not have it, or the account may not use it",
                fix="take ImageId out to have a current Ubuntu, or copy the image to the region",
                at=at,
            )
        ]
    found = []
    theirs = image.get("Architecture")
    if machine is not None and theirs and theirs != machine.architecture:
        found.append(
            Finding(
                "error",
                f"the image {name} is for {theirs}, and {machine.name} is {machine.architecture}",
                why="the machine could not start from it",
                fix="take ImageId out, or name an image for the processor",
                at=at,
            )
        )
    words = f"{image.get('Name', '')} {image.get('Description', '')}".lower()
    if machine is not None and machine.has_nvidia and not any(w in words for w in _GPU_WORDS):
        found.append(
            Finding(
                "warning",
                f"the image {name} may have no drivers for the GPUs of {machine.name}",
                why=f"its name is {image.get('Name', 'not known')!r}",
                fix="ImageId: latest_dlami has them",
                at=at,
            )
        )
    return [*found, *_of_root_volume(kind, image)]


def _of_root_volume(kind: Kind, image: Mapping[str, Any]) -> list[Finding]:
    root = image.get("RootDeviceName")
    needed = _size(image.get("BlockDeviceMappings") or (), root)
    asked = _size(kind.config.get("BlockDeviceMappings") or (), root)
    if needed is None or asked is None or asked >= needed:
        return []
    return [
        Finding(
            "error",
            f"the root volume of {asked} GiB is smaller than the image's {needed} GiB",
            why="AWS refuses such a machine",
            fix=f"VolumeSize: {needed}, or more",
            at=kind.at("BlockDeviceMappings"),
        )
    ]


def _size(mappings: Sequence[Mapping[str, Any]], device: Any) -> int | None:
    for mapping in mappings:
        size = (mapping.get("Ebs") or {}).get("VolumeSize")
        if mapping.get("DeviceName") == device and size is not None:
            return int(size)
    return None


def of_key_pair(kind: Kind, facts: Facts, *, has_private_half: bool) -> list[Finding]:
    name = kind.config.get("KeyName")
    if not name:
        return []
    at = kind.at("KeyName")
    if name not in facts.key_pairs:
        return [
            Finding(
                "error",
                f"there is no key pair {name}",
                why="the region does not have it",
                fix="take KeyName out to have a key made",
                at=at,
            )
        ]
    if has_private_half:
        return []
    return [
        Finding(
            "error",
            f"the private half of the key pair {name} is not here",
            why="without it nobody gets in to the machines",
            fix=f"auth: {{ssh_private_key: ~/.ssh/{name}.pem}}, or take KeyName out",
            at=at,
        )
    ]


def of_groups(kind: Kind, facts: Facts, caller: Sequence[str]) -> list[Finding]:
    """Whether the security groups that the file names let us in. `caller` is the address range
    from which we come, if it is known."""
    named = launch.own_groups(kind.config)
    at = kind.at("SecurityGroupIds")
    missing = [name for name in named if name not in facts.groups]
    if missing:
        return [
            Finding(
                "error",
                f"there is no security group {', '.join(missing)}",
                why="the region does not have it",
                fix="take SecurityGroupIds out to have one made",
                at=at,
            )
        ]
    if not named or not caller:
        return []
    rules = [rule for name in named for rule in facts.groups[name].get("IpPermissions", ())]
    if any(_lets_in(rule, range) for rule in rules for range in caller):
        return []
    return [
        Finding(
            "error",
            f"no security group of {', '.join(named)} lets SSH in from {', '.join(caller)}",
            why="the machines could not be reached from here",
            fix=f"aws ec2 authorize-security-group-ingress --group-id {named[0]} "
            f"--protocol tcp --port {_SSH} --cidr {caller[0]}",
            at=at,
        )
    ]


def _lets_in(rule: Mapping[str, Any], caller: str) -> bool:
    if rule.get("IpProtocol") not in ("tcp", "-1"):
        return False
    if rule["IpProtocol"] == "tcp" and not rule["FromPort"] <= _SSH <= rule["ToPort"]:
        return False
    we = ipaddress.ip_network(caller, strict=False)
    ranges = [r["CidrIp"] for r in rule.get("IpRanges", ())]
    ranges += [r["CidrIpv6"] for r in rule.get("Ipv6Ranges", ())]
    nets = [ipaddress.ip_network(text, strict=False) for text in ranges]
    return any(net.version == we.version and we.subnet_of(net) for net in nets)  # type: ignore[arg-type]


def of_permissions(denied: Sequence[str]) -> list[Finding]:
    if not denied:
        return []
    return [
        Finding(
            "error",
            f"you may not call {', '.join(denied)}",
            why="AWS refused a dry run",
            fix="ask for the permissions that shoal iam-policy prints",
        )
    ]


def of_quotas(
    kinds: Sequence[Kind],
    facts: Facts,
    limits: Mapping[tuple[str, str], float],
    used: Mapping[tuple[str, str], float],
) -> list[Finding]:
    """Whether the file's minimum fits the account's vCPU quotas. Limits and use are by family
    (`quota_family`) and market; what is not known does not count."""
    need: dict[tuple[str, str], float] = {}
    for kind in kinds:
        machine = facts.types.get(kind.instance_type)
        if machine is None:
            continue
        key = (quota_family(machine.name), launch.market(kind.config))
        need[key] = need.get(key, 0) + machine.resources.get("CPU", 0) * kind.fewest
    found = []
    for (family, market), vcpus in need.items():
        limit = limits.get((family, market))
        running = used.get((family, market), 0)
        if limit is None or running + vcpus <= limit:
            continue
        found.append(
            Finding(
                "error",
                f"{vcpus:g} vCPUs of {market} {family} machines are wanted, "
                f"and the quota leaves {max(0, limit - running):g}",
                why=f"the limit is {limit:g}, and {running:g} are in use",
                fix="lower min_workers, choose another InstanceType, or ask AWS to raise the "
                "limit (Service Quotas, EC2)",
            )
        )
    return found


def quota_family(instance_type: str) -> str:
    """The group of types that share one of EC2's vCPU quotas."""
    letters = re.match("[a-z]*", instance_type.lower())
    word = letters[0] if letters else ""
    if word in ("trn", "inf", "dl", "mac", "hpc"):
        return word
    if word == "vt":
        return "g"
    return word[:1] if word[:1] in ("g", "p", "x", "f") else "standard"
