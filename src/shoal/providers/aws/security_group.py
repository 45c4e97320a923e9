"""The security group of a cluster: created if missing, its rules, and the caller's address, from
which SSH is allowed. A group that Shoal did not create is never changed."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.aws import tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.vm.caller_address import CallerAddress, fetch_caller_address, this_machine

_log = logging.getLogger(__name__)

_SSH_PORT = 22

# The error code for a group that was created a moment ago.
NOT_PROPAGATED = "InvalidGroup.NotFound"


async def ensure_group(
    aws: AwsClient,
    cluster: str,
    vpc: str,
    settings: Mapping[str, Any],
    own_tags: Mapping[str, str],
) -> dict[str, Any]:
    """The record of the cluster's security group in a VPC, created if it is missing."""
    name = str(settings.get("GroupName") or tags.resource_name(cluster))
    return await _find_group(aws, vpc, name) or await _create_group(
        aws, cluster, vpc, name, own_tags
    )


async def ensure_rules(
    aws: AwsClient,
    cluster: str,
    group: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    ssh_from: Sequence[str],
    peers: Sequence[str] = (),
) -> None:
    """Add the missing rules to a group, unless the group is not the cluster's own, and remove
    SSH from addresses that this machine had before. `peers` are the other groups of the nodes."""
    if tags.as_dict(group.get("Tags")).get(tags.CLUSTER) != cluster:
        return
    inside = [str(group["GroupId"]), *(id for id in peers if id != group["GroupId"])]
    wanted = rules(inside, settings.get("IpPermissions") or (), ssh_from)
    if not await _authorize(aws, group, wanted):
        # Another command added rules at the same time: compare with the group's current ones.
        current = await _find_group(aws, str(group["VpcId"]), str(group["GroupName"]))
        await _authorize(aws, current or group, wanted)
    await _revoke_earlier_addresses(aws, group, ssh_from)


async def _revoke_earlier_addresses(
    aws: AwsClient, group: Mapping[str, Any], ssh_from: Sequence[str]
) -> None:
    earlier = [
        cidr
        for rule in group["IpPermissions"]
        for cidr, description in _ranges(rule)
        if description == _rule_description() and cidr not in ssh_from
    ]
    if not earlier:
        return
    _log.info("removing SSH from %s in %s", ", ".join(earlier), group["GroupName"])
    await aws.call(
        "ec2",
        "revoke_security_group_ingress",
        # A caller with the permissions of an earlier version may only add rules.
        ignore_codes=("InvalidPermission.NotFound", "UnauthorizedOperation"),
        GroupId=group["GroupId"],
        IpPermissions=[_ssh_rule(cidr) for cidr in earlier],
    )


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


async def _create_group(
    aws: AwsClient, cluster: str, vpc: str, name: str, own_tags: Mapping[str, str]
) -> dict[str, Any]:
    """The record of the new group, or of the one that another command has just created."""
    labels = tags.cluster_tags(cluster, own_tags)
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


async def ids_by_name(aws: AwsClient, names: Sequence[str], vpc: str | None) -> list[str]:
    """The ids of the groups with these names; of equal names, the one in the VPC."""
    filters = [{"Name": "group-name", "Values": list(names)}]
    groups = await aws.cached(
        f"security groups {sorted(names)}",
        lambda: aws.paginate("ec2", "describe_security_groups", "SecurityGroups", Filters=filters),
    )
    groups = sorted(groups, key=lambda group: group["VpcId"] == vpc)
    ids = {group["GroupName"]: str(group["GroupId"]) for group in groups}
    if missing := [name for name in names if name not in ids]:
        raise ConfigError(
            f"there is no security group named {', '.join(missing)}",
            why="SecurityGroups names it, but the region does not have it",
            fix="remove SecurityGroups to have one created, or correct the name",
        )
    return [ids[name] for name in names]


async def list_groups(aws: AwsClient, cluster: str) -> list[dict[str, Any]]:
    """The records of the security groups that were created for a cluster."""
    return await aws.paginate(
        "ec2", "describe_security_groups", "SecurityGroups", Filters=tags.cluster_filter(cluster)
    )


async def vpcs_of_groups(aws: AwsClient, ids: Sequence[str]) -> dict[str, str]:
    """The VPC of each of these groups that exists."""
    if not ids:
        return {}
    return {group["GroupId"]: group["VpcId"] for group in await describe_groups(aws, ids)}


async def describe_groups(aws: AwsClient, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The records of those of these groups that exist."""
    filters = [{"Name": "group-id", "Values": sorted(ids)}]
    return await aws.cached(
        f"security groups {sorted(ids)}",
        lambda: aws.paginate("ec2", "describe_security_groups", "SecurityGroups", Filters=filters),
    )


async def revoke_references(
    aws: AwsClient, group: Mapping[str, Any], others: Collection[str]
) -> None:
    """Remove the rules of a group that name other groups: EC2 refuses to delete a group that a
    rule names."""
    pairs = [
        (rule, pair["GroupId"])
        for rule in group["IpPermissions"]
        for pair in rule.get("UserIdGroupPairs") or ()
        if pair["GroupId"] in others
    ]
    if not pairs:
        return
    ports = ("IpProtocol", "FromPort", "ToPort")
    await aws.call(
        "ec2",
        "revoke_security_group_ingress",
        ignore_codes=("InvalidPermission.NotFound", "InvalidGroup.NotFound"),
        GroupId=group["GroupId"],
        IpPermissions=[
            {**{k: rule[k] for k in ports if k in rule}, "UserIdGroupPairs": [{"GroupId": id}]}
            for rule, id in pairs
        ],
    )


def rules(
    groups: Sequence[str], own: Sequence[Mapping[str, Any]], ssh_from: Sequence[str]
) -> list[dict[str, Any]]:
    """All traffic from these groups, SSH from `ssh_from`, and the file's `own` rules. If these
    cover SSH, they alone decide who may log in."""
    inside = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id}]} for id in groups]
    if has_ssh_rules({"IpPermissions": own}):
        ssh_from = ()
    ssh = [_ssh_rule(cidr, _rule_description()) for cidr in ssh_from]
    return [*inside, *ssh, *map(dict, own)]


def _ssh_rule(cidr: str, description: str = "") -> dict[str, Any]:
    ports = {"IpProtocol": "tcp", "FromPort": _SSH_PORT, "ToPort": _SSH_PORT}
    return {**ports, **_source(cidr, description)}


def _rule_description() -> str:
    """The description of the rules for this machine's address, by which they are found when it
    has another address: several users may share a cluster."""
    return f"SSH from the machine {this_machine()}"


def _source(cidr: str, description: str) -> dict[str, Any]:
    """The part of a rule that names a range: EC2 has one list for IPv4 and one for IPv6."""
    described = {"Description": description} if description else {}
    if ipaddress.ip_network(cidr, strict=False).version == 6:
        return {"Ipv6Ranges": [{"CidrIpv6": cidr, **described}]}
    return {"IpRanges": [{"CidrIp": cidr, **described}]}


def has_ssh_rules(settings: Mapping[str, Any]) -> bool:
    """Whether the `security_group` section decides who may log in."""
    return any(map(covers_ssh, settings.get("IpPermissions") or ()))


def covers_ssh(rule: Mapping[str, Any]) -> bool:
    protocol = _protocol(rule)
    from_port, to_port = int(rule.get("FromPort", 0)), int(rule.get("ToPort", 65535))
    return protocol == "-1" or (protocol == "tcp" and from_port <= _SSH_PORT <= to_port)


def allows_ssh(group: Mapping[str, Any], caller: Sequence[str]) -> bool:
    """Whether a group allows SSH from all of these ranges."""
    networks = [
        ipaddress.ip_network(cidr)
        for rule in group["IpPermissions"]
        if covers_ssh(rule)
        for cidr, _ in _ranges(rule)
    ]
    return all(
        any(
            network.version == wanted.version and wanted.subnet_of(network)  # type: ignore[arg-type]
            for network in networks
        )
        for wanted in map(ipaddress.ip_network, caller)
    )


def _protocol(rule: Mapping[str, Any]) -> str:
    """The protocol of a rule as EC2 reports it: lower-case, and common ones by name."""
    name = str(rule.get("IpProtocol")).lower()
    return {"1": "icmp", "6": "tcp", "17": "udp"}.get(name, name)


def _ranges(rule: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The CIDR ranges of a rule, with their descriptions."""
    entries = [(r["CidrIp"], r.get("Description", "")) for r in rule.get("IpRanges") or ()]
    entries += [(r["CidrIpv6"], r.get("Description", "")) for r in rule.get("Ipv6Ranges") or ()]
    return entries


def _has_rule(present: Sequence[Mapping[str, Any]], rule: Mapping[str, Any]) -> bool:
    """Whether the rules of a group, as EC2 lists them, contain a wanted rule."""

    def sources(entry: Mapping[str, Any]) -> set[str]:
        pairs = {p["GroupId"] for p in entry.get("UserIdGroupPairs") or ()}
        return pairs | {cidr for cidr, _ in _ranges(entry)}

    def ports(entry: Mapping[str, Any]) -> tuple[Any, ...]:
        return _protocol(entry), entry.get("FromPort"), entry.get("ToPort")

    return any(ports(entry) == ports(rule) and sources(rule) <= sources(entry) for entry in present)


async def caller_ranges(aws: AwsClient) -> list[str]:
    """This machine's public address, as a CIDR range of one address."""
    return [(await caller_address(aws)).cidr]


async def caller_address(aws: AwsClient) -> CallerAddress:
    """This machine's public address."""
    return await aws.cached("caller address", fetch_caller_address)


async def fetch_caller_ranges() -> list[str]:
    """The range of this machine's address now: a laptop moves."""
    return [(await fetch_caller_address()).cidr]


async def vpc_ranges(aws: AwsClient, vpc: str) -> list[str]:
    """The CIDR ranges of a VPC, for callers inside it."""
    response = await aws.call("ec2", "describe_vpcs", VpcIds=[vpc])
    return [
        block["CidrBlock"]
        for record in response["Vpcs"]
        for block in record.get("CidrBlockAssociationSet") or ({"CidrBlock": record["CidrBlock"]},)
    ]
