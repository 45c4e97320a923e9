"""Which zone and region is used, and the errors for an account that rejects every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest

from shoal.core.errors import AuthError
from shoal.providers.model import Instance, LaunchRequest
from tests.providers.aws.aws_bed import cluster_file
from tests.providers.aws.broken_accounts import MISTAKES, Scenario
from tests.providers.aws.provider_account import Account
from tests.providers.aws.test_preflight_fixes import preflight

pytestmark = pytest.mark.simcloud

LOCAL_ZONE = "us-west-2-lax-1a"
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


def ec2(account: Account) -> Any:
    return boto3.client("ec2", **account.cloud.ec2.client_options())


def with_head(**config: Any) -> dict[str, Any]:
    types: dict[str, Any] = cluster_file()["available_node_types"]
    types["head"]["node_config"].update(config)
    return types


async def launch(account: Account, token: str = "t", count: int = 1) -> list[Instance]:
    provider = account.provider()
    await provider.offerings(account.spec)
    role = "head" if token == "t" else "worker"
    return list(
        await provider.launch(
            account.spec,
            [LaunchRequest(role, role, count, token)],  # type: ignore[arg-type]
        )
    )


async def test_a_local_zone_is_used_only_if_the_file_names_it(account: Account) -> None:
    client = ec2(account)
    (vpc,) = client.describe_vpcs()["Vpcs"]
    subnet = client.create_subnet(
        VpcId=vpc["VpcId"], CidrBlock="172.31.240.0/24", AvailabilityZone=LOCAL_ZONE
    )["Subnet"]["SubnetId"]
    client.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    await account.cloud.ec2.set_leftover_baseline()
    (head,) = await launch(account)
    assert head.zone == "us-west-2a"
    await account.down()
    provider = {"type": "aws", "region": "us-west-2", "availability_zone": LOCAL_ZONE}
    account.file(provider=provider)
    (head,) = await launch(account)
    assert head.zone == LOCAL_ZONE
    await account.down()


async def test_a_spot_launch_uses_the_cheapest_zone_unless_the_file_orders_them(
    account: Account,
) -> None:
    account.cloud.ec2.market.spot_factors = {f"us-west-2{zone}": 2.0 for zone in "abd"}
    account.file(available_node_types=with_head(**SPOT))
    (head,) = await launch(account)
    assert head.zone == "us-west-2c"
    await account.down()
    zones = "us-west-2b,us-west-2c"
    account.file(provider={"type": "aws", "region": "us-west-2", "availability_zone": zones})
    (head,) = await launch(account)
    assert head.zone == "us-west-2b"
    await account.down()


async def test_a_repeated_launch_with_another_count_keeps_what_the_first_one_launched(
    account: Account,
) -> None:
    """EC2 refuses a ClientToken with another MaxCount."""
    await launch(account)
    first = await launch(account, "w", 1)
    both = await launch(account, "w", 2)
    assert len(both) == 2
    assert {i.id for i in first} < {i.id for i in both}
    assert len(account.cloud.ledger.running()) == 3
    await account.down()


async def test_security_groups_can_be_given_by_name_together_with_a_subnet(
    account: Account,
) -> None:
    client = ec2(account)
    subnet = client.describe_subnets()["Subnets"][0]
    for vpc in (client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"], subnet["VpcId"]):
        group = client.create_security_group(GroupName="ours", Description="ours", VpcId=vpc)
    await account.cloud.ec2.set_leftover_baseline()
    account.file(
        available_node_types=with_head(SecurityGroups=["ours"], SubnetId=subnet["SubnetId"])
    )
    (head,) = await launch(account)
    (reservation,) = client.describe_instances(InstanceIds=[head.id])["Reservations"]
    groups = [g["GroupId"] for g in reservation["Instances"][0]["SecurityGroups"]]
    assert groups == [group["GroupId"]]
    await account.down()


async def test_a_region_that_the_account_has_not_enabled_is_named(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(tmp_path, cloud=account.cloud)
    scenario.file["provider"]["region"] = "me-south-1"
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.severity == "error"
    assert finding.what == "region me-south-1 is not enabled for this account"
    assert "aws account enable-region --region-name me-south-1" in finding.fix


@pytest.mark.parametrize(
    ("ahead", "text"), [(-3600.0, "60 minutes ahead"), (900.0, "15 minutes b")]
)
async def test_a_wrong_clock_is_named_instead_of_the_login(
    account: Account,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    text: str,
) -> None:
    account.cloud.faults.clock_ahead_s = ahead
    with pytest.raises(AuthError) as caught:
        await account.provider().list_instances("mine")
    assert text in caught.value.what
    (finding,) = await preflight(Scenario(tmp_path, cloud=account.cloud), monkeypatch)
    assert text in finding.what
    assert "aws configure" not in finding.fix


async def test_advice_about_public_addresses_names_a_subnet_with_a_route_to_the_internet(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ec2(account)
    scenario = Scenario(tmp_path, cloud=account.cloud)
    MISTAKES["private subnets"].apply(scenario)
    first, *others = client.describe_subnets()["Subnets"]
    private = client.create_route_table(VpcId=first["VpcId"])["RouteTable"]["RouteTableId"]
    client.associate_route_table(RouteTableId=private, SubnetId=first["SubnetId"])
    (finding,) = await preflight(scenario, monkeypatch)
    assert others[0]["SubnetId"] in finding.fix
    for subnet in others:
        client.associate_route_table(RouteTableId=private, SubnetId=subnet["SubnetId"])
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.what == "no subnet has public addresses and a route to the internet"
    assert "modify-subnet-attribute" not in finding.fix
