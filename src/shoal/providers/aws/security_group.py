"""The security group of a cluster: created if missing, its rules, and the caller's address, from
which SSH is allowed. A group that Shoal did not create is never changed."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.aws import tags
from shoal.providers.aws.aws_client import AwsClient

_log = logging.getLogger(__name__)

# AWS's service that returns the caller's address; the variable names a substitute for networks
# that cannot reach it.
_CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_VARIABLE = "SHOAL_CHECKIP_URL"
_CHECKIP_SECONDS = 5.0
_SSH_PORT = 22

# The error code for a group that was created a moment ago.
NOT_PROPAGATED = "InvalidGroup.NotFound"


async def ensure_group(
    aws: AwsClient, cluster: str, vpc: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The record of the cluster's security group in a VPC, created if it is missing."""
    name = str(settings.get("GroupName") or tags.resource_name(cluster))
    return await _find_group(aws, vpc, name) or await _create_group(aws, cluster, vpc, name)


async def ensure_rules(
    aws: AwsClient,
    cluster: str,
    group: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    ssh_from: Sequence[str],
) -> None:
    """Add the missing rules to a group, unless the group is not the cluster's own."""
    if tags.as_dict(group.get("Tags")).get(tags.CLUSTER) != cluster:
        return
    wanted = rules(str(group["GroupId"]), settings.get("IpPermissions") or (), ssh_from)
    if not await _authorize(aws, group, wanted):
        # Another command added rules at the same time: compare with the group's current ones.
        current = await _find_group(aws, str(group["VpcId"]), str(group["GroupName"]))
        await _authorize(aws, current or group, wanted)


async def _authorize(
    aws: AwsClient, group: Mapping[str, Any], wanted: Sequence[dict[str, Any]]
) -> bool:
    """Add the rules that a group lacks. False when AWS rejected them because one of them exists:
    then it has added none of them."""
    missing = [rule for rule in wanted if not _has_rule(group["IpPermissions"], rule)]
    return not missing or bool(
        await aws.call(
            "ec2",
            "authorize_security_group_ingress",
            ignore_codes=("InvalidPermission.Duplicate",),
            retry_codes=(NOT_PROPAGATED,),
            GroupId=group["GroupId"],
            IpPermissions=missing,
        )
    )


async def _create_group(aws: AwsClient, cluster: str, vpc: str, name: str) -> dict[str, Any]:
    """The record of the new group, or of the one that another command has just created."""
    labels = tags.cluster_tags(cluster)
    created = await aws.call(
        "ec2",
        "create_security_group",
        ignore_codes=("InvalidGroup.Duplicate",),
        GroupName=name,
        Description=f"Shoal: the nodes of cluster {cluster}"[:255],
        VpcId=vpc,
        TagSpecifications=tags.tag_specifications("security-group", labels),
    )
    if created:
        _log.info("created security group %s in %s", name, vpc)
        group = {"GroupId": created["GroupId"], "GroupName": name, "VpcId": vpc}
        return {**group, "Tags": tags.as_list(labels), "IpPermissions": []}
    existing = await _find_group(aws, vpc, name)
    if existing is None:
        raise ConfigError(
            f"the security group {name} exists, but EC2 does not list it", fix="shoal up CLUSTER"
        )
    return existing


async def _find_group(aws: AwsClient, vpc: str, name: str) -> dict[str, Any] | None:
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "group-name", "Values": [name]}]
    groups = await aws.paginate(
        "ec2", "describe_security_groups", "SecurityGroups", Filters=filters
    )
    return groups[0] if groups else None


async def list_groups(aws: AwsClient, cluster: str) -> list[dict[str, Any]]:
    """The records of the security groups that were created for a cluster."""
    return await aws.paginate(
        "ec2", "describe_security_groups", "SecurityGroups", Filters=tags.cluster_filter(cluster)
    )


def rules(
    group: str, own: Sequence[Mapping[str, Any]], ssh_from: Sequence[str]
) -> list[dict[str, Any]]:
    """All traffic inside the group, SSH from `ssh_from`, and the file's `own` rules. If these
    cover SSH, they alone decide who may log in."""
    inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    if any(covers_ssh(rule) for rule in own):
        ssh_from = ()
    ssh = [
        {
            "IpProtocol": "tcp",
            "FromPort": _SSH_PORT,
            "ToPort": _SSH_PORT,
            "IpRanges": [{"CidrIp": cidr, "Description": "SSH from the launching machine"}],
        }
        for cidr in ssh_from
    ]
    return [inside, *ssh, *map(dict, own)]


def covers_ssh(rule: Mapping[str, Any]) -> bool:
    all_protocols = str(rule.get("IpProtocol")) == "-1"
    from_port, to_port = int(rule.get("FromPort", 0)), int(rule.get("ToPort", 65535))
    return all_protocols or (rule.get("IpProtocol") == "tcp" and from_port <= _SSH_PORT <= to_port)


def _has_rule(present: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> bool:
    """Whether the rules of a group, as EC2 lists them, contain a wanted rule."""

    def sources(entry: Mapping[str, Any]) -> set[str]:
        ranges = {r["CidrIp"] for r in entry.get("IpRanges") or ()}
        ranges |= {r["CidrIpv6"] for r in entry.get("Ipv6Ranges") or ()}
        return ranges | {p["GroupId"] for p in entry.get("UserIdGroupPairs") or ()}

    def ports(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        return str(entry.get("IpProtocol")), entry.get("FromPort"), entry.get("ToPort")

    return any(ports(entry) == ports(rule) and sources(rule) <= sources(entry) for entry in present)


async def caller_ranges(aws: AwsClient) -> list[str]:
    """This machine's public address, as a CIDR range of one address."""
    return await aws.cached("caller address", _fetch_caller_ranges)


async def _fetch_caller_ranges() -> list[str]:
    url = os.environ.get(_CHECKIP_VARIABLE) or _CHECKIP_URL
    try:
        text = await asyncio.to_thread(_fetch, url)
        address = ipaddress.ip_address(text.strip())
    except (OSError, ValueError) as error:
        raise ConfigError(
            "could not determine your public IP address",
            why=f"{url} failed: {error}",
            fix="set it in the file: shoal: {ssh_from: [198.51.100.7/32]}",
        ) from None
    return [f"{address}/{address.max_prefixlen}"]


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_CHECKIP_SECONDS) as reply:
        return str(reply.read(200).decode())


async def vpc_ranges(aws: AwsClient, vpc: str) -> list[str]:
    """The CIDR ranges of a VPC, for callers inside it."""
    response = await aws.call("ec2", "describe_vpcs", VpcIds=[vpc])
    return [
        block["CidrBlock"]
        for record in response["Vpcs"]
        for block in record.get("CidrBlockAssociationSet") or ({"CidrBlock": record["CidrBlock"]},)
    ]
