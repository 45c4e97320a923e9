"""VPCs, subnets and security groups: which are used for a launch, and which groups admit which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
import pytest

from shoal.core.errors import ConfigError
from shoal.providers.aws import launch_request, subnets
from tests.providers.aws.aws_bed import cluster_file
from tests.providers.aws.provider_account import Account

RECORDS = [
    {
        "SubnetId": f"subnet-{vpc}{zone}",
        "VpcId": f"vpc-{vpc}",
        "AvailabilityZone": f"us-west-2{zone}",
        "MapPublicIpOnLaunch": True,
        "DefaultForAz": vpc == "default",
    }
    for vpc in ("default", "other")
    for zone in "ab"
]


def choose(ids: tuple[str, ...] = (), zones: tuple[str, ...] = (), **options: Any) -> list[str]:
    chosen = subnets.choose_subnets(RECORDS, ids=ids, zones=zones, public=True, **options)
    return [subnet.id for subnet in chosen]


def test_subnets_are_those_of_the_vpc_of_the_named_groups() -> None:
    assert choose() == ["subnet-defaulta", "subnet-defaultb"]
    assert choose(vpc="vpc-other") == ["subnet-othera", "subnet-otherb"]
    with pytest.raises(ConfigError, match="vpc-empty has no subnet"):
        choose(vpc="vpc-empty")


def test_named_subnets_must_agree_with_the_zones_and_the_groups_of_the_file() -> None:
    assert choose(("subnet-othera",), ("us-west-2a",), vpc="vpc-other") == ["subnet-othera"]
    with pytest.raises(ConfigError, match="subnet-othera is in us-west-2a, outside the file's"):
        choose(("subnet-othera",), ("us-west-2b",))
    with pytest.raises(ConfigError, match="are in different VPCs"):
        choose(("subnet-othera",), vpc="vpc-default")


def test_network_interfaces_must_agree_with_the_subnets_and_be_complete() -> None:
    first = {"DeviceIndex": 0, "SubnetId": "subnet-a"}
    launch_request.check_interfaces({"NetworkInterfaces": [first], "SubnetIds": ["subnet-a"]})
    launch_request.check_interfaces({"NetworkInterfaces": [{"DeviceIndex": 0}]})
    with pytest.raises(ConfigError, match="names subnet-a, but SubnetIds names subnet-b"):
        launch_request.check_interfaces({"NetworkInterfaces": [first], "SubnetIds": ["subnet-b"]})
    with pytest.raises(ConfigError, match="network interface 2 of node_config has no subnet"):
        launch_request.check_interfaces({"NetworkInterfaces": [first, {"DeviceIndex": 1}]})


@dataclass
class Network:
    """The user's own VPC, with a public subnet and a security group."""

    ec2: Any
    vpc: str
    subnet: str
    group: str

    @classmethod
    def create(cls, account: Account) -> Network:
        ec2 = boto3.client("ec2", **account.cloud.ec2.client_options())
        vpc = ec2.create_vpc(CidrBlock="10.50.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(
            VpcId=vpc, CidrBlock="10.50.1.0/24", AvailabilityZone="us-west-2b"
        )["Subnet"]["SubnetId"]
        ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
        group = ec2.create_security_group(GroupName="mine", Description="-", VpcId=vpc)["GroupId"]
        return cls(ec2, vpc, subnet, group)

    def admitted(self, group_name: str, vpc: str) -> set[str]:
        """The groups that a group admits."""
        filters = [
            {"Name": "group-name", "Values": [group_name]},
            {"Name": "vpc-id", "Values": [vpc]},
        ]
        (group,) = self.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
        return {
            pair["GroupId"]
            for rule in group["IpPermissions"]
            for pair in rule.get("UserIdGroupPairs", ())
        }

    def groups_of(self, id: str) -> tuple[str, list[str]]:
        """The VPC and the groups of an instance."""
        response = self.ec2.describe_instances(InstanceIds=[id])
        instance = response["Reservations"][0]["Instances"][0]
        return instance["VpcId"], [group["GroupId"] for group in instance["SecurityGroups"]]


def node_types(head: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    types: dict[str, Any] = cluster_file()["available_node_types"]
    types["head"]["node_config"].update(head)
    types["worker"]["node_config"].update(worker)
    return types


@pytest.mark.simcloud
async def test_a_named_group_decides_the_vpc_and_is_admitted_by_the_created_one(
    account: Account,
) -> None:
    network = Network.create(account)
    await account.cloud.ec2.set_leftover_baseline()
    worker = {"SubnetIds": [network.subnet]}
    account.file(available_node_types=node_types({"SecurityGroupIds": [network.group]}, worker))
    instances = await account.launch(workers=1)
    by_role = {i.role: network.groups_of(i.id) for i in instances}
    assert by_role["head"] == (network.vpc, [network.group])
    created = by_role["worker"][1]
    assert network.admitted("shoal-mine", network.vpc) == {network.group, *created}
    await account.down()


@pytest.mark.simcloud
async def test_groups_of_a_head_and_workers_in_two_vpcs_admit_each_other(
    account: Account,
) -> None:
    network = Network.create(account)
    await account.cloud.ec2.set_leftover_baseline()
    account.file(available_node_types=node_types({}, {"SubnetIds": [network.subnet]}))
    instances = await account.launch(workers=1)
    vpcs = {network.groups_of(i.id)[0] for i in instances}
    groups = {id for i in instances for id in network.groups_of(i.id)[1]}
    assert (len(vpcs), len(groups)) == (2, 2)
    for vpc in vpcs:
        assert network.admitted("shoal-mine", vpc) == groups
    await account.down()
