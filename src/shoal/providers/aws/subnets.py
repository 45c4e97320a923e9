"""Subnets: which ones a region has, and which of them a node type is launched in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.vm.launch_options import Subnet

# Whether a subnet has a route to the internet; only where that was looked up.
_INTERNET = "HasInternetRoute"
_REGULAR_ZONE = re.compile(r"[a-z]+(-[a-z]+)+-\d+[a-z]")


async def list_subnets(aws: AwsClient) -> list[dict[str, Any]]:
    """The records of all available subnets of the region."""
    filters = [{"Name": "state", "Values": ["available"]}]
    return await aws.cached(
        "subnets", lambda: aws.paginate("ec2", "describe_subnets", "Subnets", Filters=filters)
    )


def choose_subnets(
    records: Sequence[Mapping[str, Any]],
    *,
    ids: Sequence[str],
    zones: Sequence[str],
    public: bool,
    vpc: str | None = None,
) -> list[Subnet]:
    """The subnets for a node type, best first: those with the `ids` that the file names; else
    those of one VPC, in the file's zones and order, with public addresses if `public`. `vpc` is
    that of the security groups that the file names."""
    by_id = {record["SubnetId"]: record for record in records}
    if ids:
        missing = [id for id in ids if id not in by_id]
        if missing:
            raise ConfigError(
                f"there is no subnet {', '.join(missing)}",
                why="node_config names it, but the region does not have it",
                fix="remove SubnetIds to have a subnet chosen, or correct it",
            )
        named = [_subnet(by_id[id]) for id in ids]
        _check_named(named, zones, vpc)
        return named
    if vpc is not None:
        records = [record for record in records if record["VpcId"] == vpc]
        if not records:
            raise ConfigError(
                f"{vpc} has no subnet",
                why="the security groups of node_config are in that VPC",
                fix="remove SecurityGroupIds to have one created, or name groups of another VPC",
            )
    usable = [record for record in records if record.get("MapPublicIpOnLaunch") or not public]
    if zones:
        usable = [record for record in usable if record["AvailabilityZone"] in zones]
    else:
        # Local zones have few instance types, at higher prices: only a file that names one uses it.
        usable = [r for r in usable if _is_regular(r["AvailabilityZone"])] or usable
    if not usable:
        raise _none_usable(records, zones)
    chosen_vpc = _best_vpc(usable)
    chosen = [_subnet(record) for record in usable if record["VpcId"] == chosen_vpc]
    order = {zone: number for number, zone in enumerate(zones)}
    return sorted(chosen, key=lambda subnet: (order.get(subnet.zone, 0), subnet.zone))


def _check_named(named: Sequence[Subnet], zones: Sequence[str], vpc: str | None) -> None:
    """Whether named subnets agree with the zones and the security groups that the file names."""
    if elsewhere := [subnet for subnet in named if zones and subnet.zone not in zones]:
        subnet = elsewhere[0]
        raise ConfigError(
            f"subnet {subnet.id} is in {subnet.zone}, outside the file's zones",
            why=f"the file restricts the cluster to {', '.join(zones)}",
            fix=f"{zones_setting(sorted({s.zone for s in named}))}, or name other subnets",
        )
    if elsewhere := [subnet for subnet in named if vpc not in (None, subnet.vpc)]:
        subnet = elsewhere[0]
        raise ConfigError(
            f"subnet {subnet.id} and the security groups of node_config are in different VPCs",
            why=f"the subnet is in {subnet.vpc}, the groups are in {vpc}; AWS refuses to launch",
            fix="remove SecurityGroupIds to have one created, or name groups of the same VPC",
        )


async def with_internet_routes(
    aws: AwsClient, records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The records, each with whether its route table leads to the internet. Without such a route a
    public address is of no use."""
    tables = await aws.paginate("ec2", "describe_route_tables", "RouteTables")
    by_subnet: dict[str, Mapping[str, Any]] = {}
    main: dict[str, Mapping[str, Any]] = {}
    for table in tables:
        for association in table.get("Associations", ()):
            if association.get("Main"):
                main[table["VpcId"]] = table
            elif association.get("SubnetId"):
                by_subnet[association["SubnetId"]] = table
    return [
        {
            **record,
            _INTERNET: _leads_to_internet(
                by_subnet.get(record["SubnetId"]) or main.get(record["VpcId"]) or {}
            ),
        }
        for record in records
    ]


def _leads_to_internet(table: Mapping[str, Any]) -> bool:
    return any(
        route.get("DestinationCidrBlock") == "0.0.0.0/0"
        and str(route.get("GatewayId", "")).startswith("igw-")
        for route in table.get("Routes", ())
    )


def vpc_of(records: Sequence[Mapping[str, Any]], ids: Sequence[str]) -> str | None:
    """The VPC of the subnets with these ids, else the account's default VPC; None without one."""
    vpcs = [r["VpcId"] for r in records if r["SubnetId"] in ids]
    vpcs += [r["VpcId"] for r in records if r.get("DefaultForAz")]
    return str(vpcs[0]) if vpcs else None


def _is_regular(zone: str) -> bool:
    """Whether a zone is an availability zone of its region, not a local or wavelength zone, whose
    names continue after the region's."""
    return _REGULAR_ZONE.fullmatch(zone) is not None


def _best_vpc(usable: Sequence[Mapping[str, Any]]) -> str:
    """The account's default VPC, else the one with the most subnets to choose from."""
    count = Counter(record["VpcId"] for record in usable)
    default = {record["VpcId"] for record in usable if record.get("DefaultForAz")}
    return str(max(count, key=lambda vpc: (vpc in default, count[vpc], vpc)))


def _subnet(record: Mapping[str, Any]) -> Subnet:
    return Subnet(record["SubnetId"], record["AvailabilityZone"], record["VpcId"])


def _none_usable(records: Sequence[Mapping[str, Any]], zones: Sequence[str]) -> ConfigError:
    existing = sorted({record["AvailabilityZone"] for record in records})
    if zones and not set(zones) & set(existing):
        return ConfigError(
            f"there is no subnet in {', '.join(zones)}",
            why=f"the region's subnets are in {', '.join(existing) or 'no zone at all'}",
            fix=zones_setting(existing) if existing else "aws ec2 create-default-vpc",
        )
    if records:
        in_zones = [r for r in records if not zones or r["AvailabilityZone"] in zones]
        # A public address in a subnet without a route to the internet would not help.
        routed = [r for r in in_zones if r.get(_INTERNET, True)]
        if not routed:
            return ConfigError(
                "no subnet has public addresses and a route to the internet",
                why="an instance in a private subnet cannot be reached from this machine",
                fix="aws ec2 create-default-vpc, or if this machine is inside the network, "
                "provider: {use_internal_ips: true}",
            )
        return ConfigError(
            "no subnet assigns public addresses",
            why="an instance without one cannot be reached from this machine",
            fix=f"aws ec2 modify-subnet-attribute --subnet-id {routed[0]['SubnetId']} "
            "--map-public-ip-on-launch, or if this machine is inside the network, "
            "provider: {use_internal_ips: true}",
        )
    return ConfigError(
        "the region has no subnet",
        why="an instance needs one",
        fix="aws ec2 create-default-vpc",
    )


def zones_setting(zones: Sequence[str]) -> str:
    """The line of a file that restricts a cluster to these zones."""
    return f'provider: {{availability_zone: "{",".join(zones)}"}}'
