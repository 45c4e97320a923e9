"""SSH from a laptop whose address changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.providers.aws import security_group
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.ssh_access import SecurityGroupAccess
from shoal.spec.cluster_spec import ShoalSettings
from tests.providers.aws.aws_bed import CLUSTER, Bed, events_of
from tests.providers.aws.manual_clock import ManualClock
from tests.specs import cluster


def ssh_ranges(bed: Bed) -> list[str]:
    """The ranges from which the cluster's group allows SSH."""
    filters = [{"Name": "tag:shoal-cluster", "Values": [CLUSTER]}]
    (group,) = bed.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    rules = [rule for rule in group["IpPermissions"] if rule.get("FromPort") == 22]
    return sorted(entry["CidrIp"] for rule in rules for entry in rule["IpRanges"])


@pytest.mark.simcloud
async def test_a_laptop_with_another_address_reaches_its_cluster(bed: Bed) -> None:
    # As in Ray's own example, and EC2 reports it in lower case.
    web = {"IpProtocol": "TCP", "FromPort": 8265, "ToPort": 8265}
    rule = {**web, "IpRanges": [{"CidrIp": "192.0.2.0/24"}]}
    settings = {"type": "aws", "region": "us-west-2", "security_group": {"IpPermissions": [rule]}}
    await bed.write(provider=settings)
    await bed.up("--min-workers 0")
    assert (await bed.shoal("stop c.yaml -y")).code == 0

    await bed.laptop.move_to("198.51.100.61")
    started = await bed.shoal("start c.yaml --json")
    assert started.code == 0, started.stdout + started.stderr
    warnings = [event["what"] for event in events_of(started) if event["event"] == "warning"]
    assert "the address of this machine has changed" in warnings, started.stdout
    assert ssh_ranges(bed) == ["198.51.100.61/32"], "the earlier address is removed"

    await bed.laptop.move_to("198.51.100.62")
    done = await bed.shoal("exec c.yaml 'echo reached'")
    assert (done.code, "reached" in done.stdout) == (0, True), done.stdout + done.stderr
    assert ssh_ranges(bed) == ["198.51.100.62/32"]
    await bed.down()


class GroupClient(AwsClient):
    """An account with the security group of the cluster; keeps the calls that change it."""

    def __init__(self, address: str) -> None:
        super().__init__("us-west-2", ManualClock())
        _, ssh = security_group.rules(["sg-1"], (), [address])
        self.group = {
            "GroupId": "sg-1", "GroupName": "shoal-c", "VpcId": "vpc-1", "IpPermissions": [ssh],
            "Tags": [{"Key": "shoal-cluster", "Value": "c"}],
        }  # fmt: skip
        self.changes: list[tuple[str, list[str]]] = []
        self.listed = asyncio.Event()

    async def paginate(self, *args: Any, **params: Any) -> list[Any]:
        self.listed.set()
        return [self.group]

    async def call(self, service: str, operation: str, /, **params: Any) -> dict[str, Any]:
        ranges = [r["CidrIp"] for p in params["IpPermissions"] for r in p.get("IpRanges", ())]
        self.changes.append((operation, ranges))
        return {"Return": True}


async def connect_slowly(aws: GroupClient) -> list[Any]:
    """Connect twice to an instance that is silent until the rules are checked; the events."""
    events: list[Any] = []
    access = SecurityGroupAccess(aws, cluster(), events.append)
    for _ in range(2):
        async with access.ensured():
            await asyncio.wait_for(aws.listed.wait(), 30)
    return events


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "address").write_text("203.0.113.7\n")
    monkeypatch.setenv("SHOAL_CHECKIP_URL", f"file://{tmp_path}/address")
    return "203.0.113.7/32"


async def test_the_current_address_replaces_the_earlier_one_of_this_machine(address: str) -> None:
    aws = GroupClient("198.51.100.9/32")
    (warning,) = await connect_slowly(aws)
    assert warning.what == "the address of this machine has changed"
    assert aws.changes == [
        ("authorize_security_group_ingress", [address]),
        ("revoke_security_group_ingress", ["198.51.100.9/32"]),
    ]


async def test_a_group_that_allows_this_address_is_not_changed(address: str) -> None:
    aws = GroupClient(address)
    assert await connect_slowly(aws) == []
    assert aws.changes == []


async def test_ranges_of_the_file_are_not_changed(address: str) -> None:
    aws = GroupClient("198.51.100.9/32")
    settings = ShoalSettings(ssh_from=("198.51.100.0/24",))
    access = SecurityGroupAccess(aws, replace(cluster(), shoal=settings), lambda event: None)
    await access.allow_this_machine()
    assert aws.changes == []
    await SecurityGroupAccess(aws, cluster(), lambda event: None).allow_this_machine()
    assert aws.changes, "without the setting"


def group(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"IpPermissions": list(rules)}


def rule(cidr: str, protocol: str = "tcp") -> dict[str, Any]:
    ports = {} if protocol == "-1" else {"FromPort": 22, "ToPort": 22}
    return {"IpProtocol": protocol, **ports, "IpRanges": [{"CidrIp": cidr}]}


def test_a_group_allows_ssh_from_an_address_inside_one_of_its_ranges() -> None:
    caller = ["203.0.113.7/32"]
    assert security_group.allows_ssh(group(rule("203.0.113.0/24")), caller)
    assert security_group.allows_ssh(group(rule("0.0.0.0/0", "-1")), caller)
    assert not security_group.allows_ssh(group(rule("198.51.100.0/24")), caller)
    assert not security_group.allows_ssh(group(), caller)
    web = {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    assert not security_group.allows_ssh(group(web), caller)
    assert not security_group.allows_ssh(group(rule("0.0.0.0/0")), ["2001:db8::1/128"])


@pytest.mark.parametrize("protocol", ["tcp", "TCP", "6"])
def test_a_protocol_has_one_meaning_in_every_spelling(protocol: str) -> None:
    assert security_group.covers_ssh(rule("0.0.0.0/0", protocol))
