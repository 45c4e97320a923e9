"""Faults of the API strike where they should, as often as they should, and no further."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.polling import until
from tests.simcloud.calls import ApiError
from tests.simcloud.cloud import SimCloud
from tests.simcloud.ec2 import ADMIN_KEY
from tests.simcloud.hosts import Host

pytestmark = pytest.mark.simcloud


class Client:
    """boto3 without its own retries, so that a test sees every reply."""

    def __init__(self, cloud: SimCloud) -> None:
        config = Config(retries={"total_max_attempts": 1})
        self.ec2 = boto3.client("ec2", config=config, **cloud.ec2.client_options())

    def run(self, count: int = 1, at_least: int | None = None, **more: Any) -> list[str]:
        asked = {
            "ImageId": "ami-12345678",
            "InstanceType": "m5.large",
            "MinCount": at_least or count,
            "MaxCount": count,
            **more,
        }
        return [one["InstanceId"] for one in self.ec2.run_instances(**asked)["Instances"]]

    def listed(self) -> list[str]:
        reply = self.ec2.describe_instances()
        return [one["InstanceId"] for group in reply["Reservations"] for one in group["Instances"]]


@pytest.fixture
async def client(cloud: SimCloud) -> AsyncIterator[Client]:
    await cloud.ec2.warm_up()
    yield Client(cloud)


async def test_capacity_is_refused_by_type_zone_and_market(cloud: SimCloud, client: Client) -> None:
    spot: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}
    zone_b: dict[str, Any] = {"Placement": {"AvailabilityZone": "us-west-2b"}}
    by_type = cloud.faults.refuse_capacity(type="p3.2xlarge")
    cloud.faults.refuse_capacity(zone="us-west-2b", times=1)
    cloud.faults.refuse_capacity(market="spot")
    for refused in ({"InstanceType": "p3.2xlarge"}, zone_b, spot):
        with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
            client.run(**refused)
    assert len(client.run()) == 1
    assert len(client.run(**zone_b)) == 1, "it was refused once and no more"
    by_type.lift()
    assert len(client.run(InstanceType="p3.2xlarge")) == 1


async def test_capacity_is_refused_in_the_zone_of_the_subnet(
    cloud: SimCloud, client: Client
) -> None:
    subnets = client.ec2.describe_subnets()["Subnets"]
    (subnet,) = [one["SubnetId"] for one in subnets if one["AvailabilityZone"] == "us-west-2c"]
    cloud.faults.refuse_capacity(zone="us-west-2c")
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        client.run(SubnetId=subnet)


async def test_calls_are_throttled_as_often_as_asked(cloud: SimCloud, client: Client) -> None:
    fault = cloud.faults.throttle("DescribeInstances", times=2)
    for _ in range(2):
        with pytest.raises(ClientError, match="RequestLimitExceeded"):
            client.listed()
    assert client.listed() == []
    assert fault.struck == 2


async def test_a_call_that_fails_before_has_no_effect(cloud: SimCloud, client: Client) -> None:
    error = ApiError("InstanceLimitExceeded", "no more")
    cloud.faults.fail_call("RunInstances", nth=2, error=error)
    first = client.run()
    with pytest.raises(ClientError, match="InstanceLimitExceeded"):
        client.run()
    assert client.listed() == first


async def test_a_call_that_fails_after_had_its_effect_and_no_reply(
    cloud: SimCloud, client: Client
) -> None:
    cloud.faults.fail_call("RunInstances", when="after")
    with pytest.raises(BotoCoreError):
        client.run(ClientToken="again")
    assert len(client.listed()) == 1
    assert client.run(ClientToken="again") == client.listed()


async def test_a_listing_lags_behind_a_launch(cloud: SimCloud, client: Client) -> None:
    cloud.faults.lag_listings(5)
    launched = client.run()
    assert client.listed() == []
    await until(lambda: client.listed() == launched, "the listing has caught up")


async def test_a_launch_is_partial_once(cloud: SimCloud, client: Client) -> None:
    cloud.faults.partial_launch(2)
    assert len(client.run(4, at_least=1)) == 2
    assert len(client.run(4, at_least=1)) == 4
    cloud.faults.partial_launch(2)
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        client.run(4)


async def test_revoked_credentials_are_refused_from_then_on(
    cloud: SimCloud, client: Client
) -> None:
    client.run()
    cloud.faults.revoke_credentials(ADMIN_KEY)
    with pytest.raises(ClientError, match="AuthFailure"):
        client.listed()
    cloud.faults.lift_all()
    assert len(client.listed()) == 1


@pytest.mark.parametrize(("when", "launched"), [("before", 0), ("after", 1)])
async def test_the_caller_can_be_killed_at_any_one_call(
    cloud: SimCloud, laptop: Host, client: Client, when: Any, launched: int
) -> None:
    script = (
        "import boto3; ec2 = boto3.client('ec2'); ec2.describe_vpcs(); "
        "ec2.run_instances(ImageId='ami-12345678', MinCount=1, MaxCount=1); print('survived')"
    )
    caller = await laptop.popen(["python", "-c", script])
    cloud.faults.at_call(2, lambda _: caller.kill(), when=when)
    ended = await caller.finish()
    assert (ended.code, ended.stdout) == (-signal.SIGKILL, "")
    assert len(client.listed()) == launched


async def test_a_spot_notice_is_told_and_then_the_machine_is_taken(
    cloud: SimCloud, client: Client
) -> None:
    (instance_id,) = client.run(InstanceMarketOptions={"MarketType": "spot"})
    await until(lambda: _state(client, instance_id) == "running", "it runs")
    host = cloud.ec2.host(instance_id)
    told = "curl -sf 169.254.169.254/latest/meta-data/spot/instance-action"
    assert (await host.run(told)).code == 22, "nothing is announced yet"
    began = time.monotonic()
    await cloud.ec2.spot_notice(instance_id, seconds=5)
    assert '"action": "terminate"' in (await host.run(told)).stdout
    await until(lambda: _state(client, instance_id) == "terminated", "it was taken")
    assert time.monotonic() - began > 4.9, "and not before its time"
    reason = _look(client, instance_id)["StateReason"]["Code"]
    assert reason == "Server.SpotInstanceTermination"


def _look(client: Client, instance_id: str) -> dict[str, Any]:
    reply = client.ec2.describe_instances(InstanceIds=[instance_id])
    found: dict[str, Any] = reply["Reservations"][0]["Instances"][0]
    return found


def _state(client: Client, instance_id: str) -> str:
    return str(_look(client, instance_id)["State"]["Name"])
