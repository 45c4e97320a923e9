"""The simulated EC2 refuses and hides what EC2 does."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.polling import until
from tests.simcloud.aws_images import RAY_EXAMPLE_IMAGE
from tests.simcloud.cloud import SimCloud

pytestmark = pytest.mark.simcloud


def client(cloud: SimCloud) -> Any:
    return boto3.client("ec2", **cloud.ec2.client_options())


async def test_deprecated_images_are_listed_only_when_requested(cloud: SimCloud) -> None:
    ec2 = client(cloud)
    by_filter = {"Filters": [{"Name": "image-id", "Values": [RAY_EXAMPLE_IMAGE]}]}
    assert ec2.describe_images(**by_filter)["Images"] == []
    (image,) = ec2.describe_images(ImageIds=[RAY_EXAMPLE_IMAGE])["Images"]
    assert image["DeprecationTime"].startswith("2022-05-01")
    assert ec2.describe_images(**by_filter, IncludeDeprecated=True)["Images"] == [image]
    with pytest.raises(ClientError, match=r"InvalidAMIID\.NotFound"):
        ec2.describe_images(ImageIds=[RAY_EXAMPLE_IMAGE, "ami-0123456789abcdef0"])


async def test_a_call_has_at_most_200_filter_values(cloud: SimCloud) -> None:
    ids = [f"i-{number:017x}" for number in range(201)]
    ec2 = client(cloud)
    ec2.describe_instances(Filters=[{"Name": "instance-id", "Values": ids[:200]}])
    with pytest.raises(ClientError, match="FilterLimitExceeded"):
        ec2.describe_instances(Filters=[{"Name": "instance-id", "Values": ids}])


async def test_a_security_group_of_another_vpc_is_refused(cloud: SimCloud) -> None:
    ec2 = client(cloud)
    vpc = ec2.create_vpc(CidrBlock="10.50.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(GroupName="g", Description="-", VpcId=vpc)["GroupId"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    launch = {"ImageId": RAY_EXAMPLE_IMAGE, "MinCount": 1, "MaxCount": 1}
    for place in (
        {"SubnetId": subnet, "SecurityGroupIds": [group]},
        {"SecurityGroupIds": [group]},
        {"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": subnet, "Groups": [group]}]},
    ):
        with pytest.raises(ClientError, match="belong to different networks"):
            ec2.run_instances(**launch, **place)


async def test_terminated_instances_have_no_tags(cloud: SimCloud) -> None:
    ec2 = client(cloud)
    labels = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]
    launch = {"ImageId": RAY_EXAMPLE_IMAGE, "MinCount": 1, "MaxCount": 1}
    (instance,) = ec2.run_instances(**launch, TagSpecifications=labels)["Instances"]
    ids = [instance["InstanceId"]]

    def record() -> dict[str, Any]:
        response = ec2.describe_instances(InstanceIds=ids)
        found: dict[str, Any] = response["Reservations"][0]["Instances"][0]
        return found

    assert record()["Tags"] == [{"Key": "a", "Value": "b"}]
    ec2.terminate_instances(InstanceIds=ids)
    await until(lambda: record()["State"]["Name"] == "terminated", "the instance is terminated")
    assert not record().get("Tags")


async def test_an_instance_of_a_capacity_block_is_not_spot(cloud: SimCloud) -> None:
    launch = {"ImageId": RAY_EXAMPLE_IMAGE, "MinCount": 1, "MaxCount": 1}
    for market in ("spot", "capacity-block"):
        options = {"MarketType": market}
        (instance,) = client(cloud).run_instances(**launch, InstanceMarketOptions=options)[
            "Instances"
        ]
        assert instance["InstanceLifecycle"] == market
