"""Each instance learns about itself, and only itself, at the link-local address."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import boto3
import pytest

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = pytest.mark.simcloud

ROOT = "169.254.169.254/latest"
WITH_TOKEN = (
    f"token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {ROOT}/api/token); "
    f'curl -sf -H "X-aws-ec2-metadata-token: $token" {ROOT}/'
)


@pytest.fixture
async def client(cloud: SimCloud) -> AsyncIterator[Any]:
    await cloud.ec2.warm_up()
    yield boto3.client("ec2", **cloud.ec2.client_options())


async def launch(cloud: SimCloud, client: Any, **more: Any) -> tuple[str, Host]:
    asked = {"ImageId": "ami-12345678", "InstanceType": "c5.large", "MinCount": 1, "MaxCount": 1}
    (instance,) = client.run_instances(**asked, **more)["Instances"]
    instance_id = instance["InstanceId"]

    def running() -> bool:
        (group,) = client.describe_instances(InstanceIds=[instance_id])["Reservations"]
        return bool(group["Instances"][0]["State"]["Name"] == "running")

    await until(running, "it runs")
    return instance_id, cloud.ec2.host(instance_id)


async def read(host: Host, path: str) -> str:
    return (await host.run(WITH_TOKEN + path)).require(f"reading {path}").stdout


async def test_an_instance_reads_who_and_where_it_is(cloud: SimCloud, client: Any) -> None:
    instance_id, host = await launch(cloud, client, UserData="as given")
    assert await read(host, "meta-data/instance-id") == instance_id
    assert await read(host, "meta-data/instance-type") == "c5.large"
    assert await read(host, "meta-data/placement/availability-zone") == "us-west-2a"
    assert await read(host, "meta-data/local-ipv4") == host.address
    assert await read(host, "user-data") == "as given"
    document = json.loads(await read(host, "dynamic/instance-identity/document"))
    assert (document["instanceId"], document["region"]) == (instance_id, "us-west-2")


async def test_the_first_version_is_refused_where_tokens_are_required(
    cloud: SimCloud, client: Any
) -> None:
    _, lenient = await launch(cloud, client)
    _, strict = await launch(cloud, client, MetadataOptions={"HttpTokens": "required"})
    plain = f"curl -s -o /dev/null -w '%{{http_code}}' {ROOT}/meta-data/instance-id"
    assert (await lenient.run(plain)).stdout == "200"
    assert (await strict.run(plain)).stdout == "401"
    assert await read(strict, "meta-data/instance-id")


async def test_a_token_of_another_instance_is_worthless(cloud: SimCloud, client: Any) -> None:
    _, one = await launch(cloud, client)
    _, other = await launch(cloud, client)
    new = f"curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {ROOT}/api/token"
    token = (await one.run(new)).stdout
    stolen = f"curl -s -o /dev/null -w '%{{http_code}}' -H 'X-aws-ec2-metadata-token: {token}' "
    assert (await other.run(stolen + f"{ROOT}/meta-data/instance-id")).stdout == "401"


async def test_boto3_on_an_instance_acts_with_the_role_of_its_profile(
    cloud: SimCloud, client: Any
) -> None:
    iam = boto3.client("iam", **cloud.ec2.client_options())
    cloud.ec2.permissions.limits_roles = True
    iam.create_role(RoleName="worker", AssumeRolePolicyDocument="{}")
    read = {"Effect": "Allow", "Action": "ec2:DescribeInstances", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [read]})
    iam.put_role_policy(RoleName="worker", PolicyName="read", PolicyDocument=document)
    iam.create_instance_profile(InstanceProfileName="profile")
    iam.add_role_to_instance_profile(InstanceProfileName="profile", RoleName="worker")
    script = (
        "import boto3; ec2 = boto3.client('ec2', region_name='us-west-2'); "
        "print(len(ec2.describe_instances()['Reservations'])); ec2.describe_subnets()"
    )
    _, bare = await launch(cloud, client)
    without = await bare.run(["python", "-c", script])
    assert "NoCredentialsError" in without.stderr

    _, host = await launch(cloud, client, IamInstanceProfile={"Name": "profile"})
    result = await host.run(["python", "-c", script])
    assert result.stdout == "2\n", result.stderr
    assert "not authorized to perform: ec2:DescribeSubnets" in result.stderr
    assert cloud.ledger.entries[-1].call.source == host.address


async def test_metadata_can_be_silent_for_a_while(cloud: SimCloud, client: Any) -> None:
    instance_id, host = await launch(cloud, client)
    cloud.ec2.metadata.silence(60)
    curl = f"curl -s -m 0.3 {ROOT}/meta-data/instance-id"
    assert (await host.run(curl)).code == 28, "a timeout"
    cloud.ec2.metadata.silence(0)
    assert await read(host, "meta-data/instance-id") == instance_id


async def test_maintenance_is_announced(cloud: SimCloud, client: Any) -> None:
    instance_id, host = await launch(cloud, client)
    path = "meta-data/events/maintenance/scheduled"
    assert json.loads(await read(host, path)) == []
    await cloud.ec2.maintenance_notice(instance_id)
    (event,) = json.loads(await read(host, path))
    assert event["Code"] == "instance-retirement"


async def test_a_machine_that_is_no_instance_has_no_metadata(cloud: SimCloud) -> None:
    host = await cloud.boot()
    status = await host.run(f"curl -s -o /dev/null -w '%{{http_code}}' {ROOT}/meta-data/")
    assert status.stdout == "403"
