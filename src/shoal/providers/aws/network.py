"""Where in AWS's network a cluster's machines are put, and who may talk to them."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.aws import tags
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.launch_options import Subnet

# AWS's own service that tells callers their address; a site without it can have another.
_CHECKIP = "https://checkip.amazonaws.com"
_CHECKIP_VARIABLE = "SHOAL_CHECKIP_URL"
_CHECKIP_SECONDS = 5.0
_SSH = 22

# What AWS says of a group that was made a moment ago.
NOT_KNOWN_YET = "InvalidGroup.NotFound"


async def subnets(aws: AwsClient) -> list[dict[str, Any]]:
    """Every subnet that machines can be put in."""
    usable = [{"Name": "state", "Values": ["available"]}]
    return await aws.once(
        "subnets", lambda: aws.pages("ec2", "describe_subnets", "Subnets", Filters=usable)
    )


def choose_subnets(
    known: Sequence[Mapping[str, Any]],
    *,
    named: Sequence[str],
    zones: Sequence[str],
    public: bool,
) -> list[Subnet]:
    """The subnets for one kind of machine, best first: those that the file names; else those of
    one VPC, in the file's zones and order, with public addresses where they are needed."""
    by_id = {one["SubnetId"]: one for one in known}
    if named:
        missing = [id for id in named if id not in by_id]
        if missing:
            raise ConfigError(
                f"there is no subnet {', '.join(missing)}",
                why="node_config names it, and the region does not have it",
                fix="take SubnetIds out to have a subnet chosen, or correct it",
            )
        return [_subnet(by_id[id]) for id in named]
    usable = [one for one in known if one.get("MapPublicIpOnLaunch") or not public]
    if zones:
        usable = [one for one in usable if one["AvailabilityZone"] in zones]
    if not usable:
        raise _none_usable(known, zones)
    vpc = _best_vpc(usable)
    chosen = [_subnet(one) for one in usable if one["VpcId"] == vpc]
    order = {zone: number for number, zone in enumerate(zones)}
    return sorted(chosen, key=lambda s: (order.get(s.zone, 0), s.zone))


def _best_vpc(usable: Sequence[Mapping[str, Any]]) -> str:
    """The account's default VPC, or else the one with the most zones to choose from."""
    count = Counter(one["VpcId"] for one in usable)
    default = {one["VpcId"] for one in usable if one.get("DefaultForAz")}
    return str(max(count, key=lambda vpc: (vpc in default, count[vpc], vpc)))


def _subnet(record: Mapping[str, Any]) -> Subnet:
    return Subnet(record["SubnetId"], record["AvailabilityZone"], record["VpcId"])


def _none_usable(known: Sequence[Mapping[str, Any]], zones: Sequence[str]) -> ConfigError:
    there = sorted({one["AvailabilityZone"] for one in known})
    if zones and not set(zones) & set(there):
        return ConfigError(
            f"there is no subnet in {', '.join(zones)}",
            why=f"the region's subnets are in {', '.join(there) or 'no zone at all'}",
            fix=in_zones(there) if there else "aws ec2 create-default-vpc",
        )
    if known:
        private = next(one for one in known if not zones or one["AvailabilityZone"] in zones)
        return ConfigError(
            "no subnet gives machines public addresses",
            why="without one a machine cannot be reached from here",
            fix=f"aws ec2 modify-subnet-attribute --subnet-id {private['SubnetId']} "
            "--map-public-ip-on-launch, or if this machine is inside the network, "
            "provider: {use_internal_ips: true}",
        )
    return ConfigError(
        "the region has no subnet",
        why="a machine needs one",
        fix="aws ec2 create-default-vpc",
    )


def in_zones(zones: Sequence[str]) -> str:
    """The line of a file that puts a cluster into these zones."""
    return f'provider: {{availability_zone: "{",".join(zones)}"}}'


async def have_group(
    aws: AwsClient, cluster: str, vpc: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The cluster's security group in a VPC, made if it is missing."""
    name = str(settings.get("GroupName") or tags.name_for(cluster))
    return await _find_group(aws, vpc, name) or await _make_group(aws, cluster, vpc, name)


async def open_group(
    aws: AwsClient,
    cluster: str,
    group: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    ssh_from: Sequence[str],
) -> None:
    """Give a group all of its rules. One that is not ours is used as it is."""
    if tags.as_dict(group.get("Tags")).get(tags.CLUSTER) != cluster:
        return
    wanted = rules(str(group["GroupId"]), settings.get("IpPermissions") or (), ssh_from)
    if not await _allow(aws, group, wanted):
        # Someone else was adding rules: of ours, those that are missing now are new.
        now = await _find_group(aws, str(group["VpcId"]), str(group["GroupName"]))
        await _allow(aws, now or group, wanted)


async def _allow(
    aws: AwsClient, group: Mapping[str, Any], wanted: Sequence[dict[str, Any]]
) -> bool:
    """Add what a group's rules lack. False when AWS would not, because it has one of them: then
    it has added none of the others either."""
    missing = [rule for rule in wanted if not _has(group["IpPermissions"], rule)]
    return not missing or bool(
        await aws.call(
            "ec2",
            "authorize_security_group_ingress",
            ignoring=("InvalidPermission.Duplicate",),
            not_yet=(NOT_KNOWN_YET,),
            GroupId=group["GroupId"],
            IpPermissions=missing,
        )
    )


async def _make_group(aws: AwsClient, cluster: str, vpc: str, name: str) -> dict[str, Any]:
    """The group as it is when it is new, or as the one has it who made it just before."""
    labels = tags.ownership(cluster)
    made = await aws.call(
        "ec2",
        "create_security_group",
        ignoring=("InvalidGroup.Duplicate",),
        GroupName=name,
        Description=f"Shoal: the machines of cluster {cluster}"[:255],
        VpcId=vpc,
        TagSpecifications=tags.at_creation("security-group", labels),
    )
    if made:
        new = {"GroupId": made["GroupId"], "GroupName": name, "VpcId": vpc}
        return {**new, "Tags": tags.as_list(labels), "IpPermissions": []}
    group = await _find_group(aws, vpc, name)
    if group is None:
        raise ConfigError(
            f"the security group {name} was made, but cannot be found", fix="shoal up again"
        )
    return group


async def _find_group(aws: AwsClient, vpc: str, name: str) -> dict[str, Any] | None:
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "group-name", "Values": [name]}]
    found = await aws.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
    return found[0] if found else None


async def groups_of(aws: AwsClient, cluster: str) -> list[dict[str, Any]]:
    """The security groups that were made for a cluster."""
    return await aws.pages(
        "ec2", "describe_security_groups", "SecurityGroups", Filters=tags.of_cluster(cluster)
    )


def rules(
    group: str, own: Sequence[Mapping[str, Any]], ssh_from: Sequence[str]
) -> list[dict[str, Any]]:
    """Everything inside the group, SSH from the caller, and what the file asks for. A file that
    has its own rule for SSH decides alone who may log in."""
    inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    if any(covers_ssh(rule) for rule in own):
        ssh_from = ()
    ssh = [
        {
            "IpProtocol": "tcp",
            "FromPort": _SSH,
            "ToPort": _SSH,
            "IpRanges": [{"CidrIp": cidr, "Description": "SSH from who launched it"}],
        }
        for cidr in ssh_from
    ]
    return [inside, *ssh, *map(dict, own)]


def covers_ssh(rule: Mapping[str, Any]) -> bool:
    everything = str(rule.get("IpProtocol")) == "-1"
    from_port, to_port = int(rule.get("FromPort", 0)), int(rule.get("ToPort", 65535))
    return everything or (rule.get("IpProtocol") == "tcp" and from_port <= _SSH <= to_port)


def _has(present: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> bool:
    """Whether a group's rules, as AWS lists them, contain one that we want."""

    def ends(one: Mapping[str, Any]) -> set[str]:
        ranges = {r["CidrIp"] for r in one.get("IpRanges") or ()}
        ranges |= {r["CidrIpv6"] for r in one.get("Ipv6Ranges") or ()}
        return ranges | {p["GroupId"] for p in one.get("UserIdGroupPairs") or ()}

    def ports(one: Mapping[str, Any]) -> tuple[Any, ...]:
        return str(one.get("IpProtocol")), one.get("FromPort"), one.get("ToPort")

    return any(ports(one) == ports(rule) and ends(rule) <= ends(one) for one in present)


async def caller_ranges(aws: AwsClient) -> list[str]:
    """Where we seem to be, seen from AWS, as a range of one address."""
    return await aws.once("the caller's address", _caller_ranges)


async def _caller_ranges() -> list[str]:
    url = os.environ.get(_CHECKIP_VARIABLE) or _CHECKIP
    try:
        text = await asyncio.to_thread(_fetch, url)
        address = ipaddress.ip_address(text.strip())
    except (OSError, ValueError) as error:
        raise ConfigError(
            "it is not known from which address SSH is to be let in",
            why=f"{url} did not tell: {error}",
            fix="say it in the file: shoal: {ssh_from: [198.51.100.7/32]}",
        ) from None
    return [f"{address}/{address.max_prefixlen}"]


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_CHECKIP_SECONDS) as reply:
        return str(reply.read(200).decode())


async def vpc_ranges(aws: AwsClient, vpc: str) -> list[str]:
    """The addresses inside a VPC: for callers who are inside it as well."""
    answer = await aws.call("ec2", "describe_vpcs", VpcIds=[vpc])
    return [
        block["CidrBlock"]
        for one in answer["Vpcs"]
        for block in one.get("CidrBlockAssociationSet") or ({"CidrBlock": one["CidrBlock"]},)
    ]
