"""What is found wrong with a cluster file, from AWS's own records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.providers.aws.instance_types import MachineType
from shoal.providers.aws.preflight import access, checks, quotas
from shoal.providers.aws.preflight.checks import Facts, NodeTypeCheck
from shoal.providers.model import Finding
from tests.specs import cluster

ZONES = {"us-west-2a", "us-west-2b"}
M5 = MachineType("m5.large", "x86_64", {"CPU": 2})
G5 = MachineType("g5.xlarge", "x86_64", {"CPU": 4, "GPU": 1})
ARM = MachineType("m6g.large", "arm64", {"CPU": 2})
FACTS = Facts(
    types={m.name: m for m in (M5, G5, ARM)},
    offered={"m5.large": ZONES, "g5.xlarge": {"us-west-2c"}, "m6g.large": ZONES},
    images={
        "ami-x86": {
            "Architecture": "x86_64",
            "Name": "ubuntu-22.04",
            "RootDeviceName": "/dev/sda1",
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 30}}],
        }
    },
)
PAIRS = {"mine": "ssh-ed25519 AAAAmine", "secret": ""}
OPEN = {
    "IpProtocol": "tcp", "FromPort": 20, "ToPort": 30, "IpRanges": [{"CidrIp": "203.0.113.0/24"}],
}  # fmt: skip
GROUPS: dict[str, dict[str, Any]] = {
    "sg-open": {"IpPermissions": [OPEN]},
    "sg-web": {"IpPermissions": [{**OPEN, "FromPort": 80, "ToPort": 443}]},
    "sg-other": {"IpPermissions": [{**OPEN, "IpRanges": [{"CidrIp": "198.51.100.0/24"}]}]},
    "sg-all": {"IpPermissions": [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]},
}
HERE = ["203.0.113.7/32"]


def kind(instance_type: str = "m5.large", *, workers: int = 0, **config: Any) -> NodeTypeCheck:
    return NodeTypeCheck(
        "worker", {"InstanceType": instance_type, **config}, workers, is_head=False
    )


def root(gib: int) -> list[dict[str, Any]]:
    return [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": gib}}]


def words(findings: list[Any]) -> str:
    return "\n".join(f"{f.severity}: {f.what} | {f.fix}" for f in findings)


def test_what_is_as_it_should_be_gives_no_finding() -> None:
    well = kind(ImageId="ami-x86", KeyName="mine", SecurityGroupIds=["sg-open"])
    assert checks.of_region("us-west-2", {"us-west-2"}) == []
    assert checks.of_type(well, FACTS, ZONES, "us-west-2") == []
    assert checks.of_image(well, FACTS) == []
    assert checks.of_root_volume(well, FACTS) == []
    assert access.of_key_pair(well, PAIRS, [PAIRS["mine"]]) == []
    assert access.of_groups(well, GROUPS, HERE) == []


def test_a_region_that_is_misspelt_is_corrected() -> None:
    found = checks.of_region("us-wst-2", {"us-west-2", "eu-central-1"})
    assert "provider: {region: us-west-2}" in words(found)


def test_a_type_that_is_not_there_or_not_in_these_zones_is_named() -> None:
    assert "no instance type m99.huge" in words(
        checks.of_type(kind("m99.huge"), FACTS, ZONES, "us-west-2")
    )
    found = checks.of_type(kind("g5.xlarge"), FACTS, ZONES, "us-west-2")
    assert "g5.xlarge is not offered in us-west-2a, us-west-2b" in words(found)
    assert 'provider: {availability_zone: "us-west-2c"}' in words(found)
    assert found[0].at == ("node_types", "worker", "node_config", "InstanceType")


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (kind(ImageId="ami-none"), "error: there is no image ami-none"),
        (kind("m6g.large", ImageId="ami-x86"), "is for x86_64, and m6g.large is arm64"),
        (kind("g5.xlarge", ImageId="ami-x86"), "warning: the image ami-x86 may have no drivers"),
        (
            kind(ImageId="ami-x86", BlockDeviceMappings=root(8)),
            "the root volume of 8 GiB is smaller than the image's 30 GiB | VolumeSize: 30",
        ),
    ],
)
def test_an_image_that_does_not_fit_is_told(of: NodeTypeCheck, message: str) -> None:
    assert message in words(checks.of_image(of, FACTS) + checks.of_root_volume(of, FACTS))


@pytest.mark.parametrize(
    ("gib", "verdict"),
    [
        (100, "error: the image big does not fit on a root volume of 100 GiB | VolumeSize: 1220"),
        (600, "warning: the image big may not fit on a root volume of 600 GiB | VolumeSize: 1220"),
        (900, ""),
    ],
)
def test_an_image_of_containers_has_to_fit_on_the_root_volume(gib: int, verdict: str) -> None:
    housed = replace(kind(BlockDeviceMappings=root(gib)), housed={"big": ("docker", "image")})
    assert words(checks.of_container_room(housed, FACTS, {"big": 405 * 2**30})) == verdict


def test_a_root_volume_that_the_file_does_not_name_is_the_images() -> None:
    housed = replace(kind(ImageId="ami-x86"), housed={"big": ("docker", "image")})
    found = words(checks.of_container_room(housed, FACTS, {"big": 40 * 2**30}))
    assert "a root volume of 30 GiB" in found
    assert "BlockDeviceMappings: [{DeviceName: /dev/sda1, Ebs: {VolumeSize: 130}}]" in found


def test_of_an_image_whose_size_nobody_tells_nothing_is_said() -> None:
    housed = replace(kind(ImageId="ami-x86"), housed={"big": ("docker", "image")})
    assert checks.of_container_room(housed, FACTS, {"big": None}) == []


@pytest.mark.parametrize(
    ("pair", "own", "said"),
    [
        ("other", "ssh-ed25519 AAAAmine", "there is no key pair other"),
        ("mine", None, "the private half of the key pair mine is not here"),
        ("mine", "ssh-ed25519 AAAAelse", "the private half of the key pair mine is not here"),
        ("mine", "ssh-ed25519 AAAAmine me@laptop", ""),
        ("secret", "ssh-ed25519 AAAAmine", ""),
    ],
)
def test_a_key_pair_without_its_private_half_is_told(pair: str, own: str | None, said: str) -> None:
    keys = [] if own is None else [own]
    found = words(access.of_key_pair(kind(KeyName=pair), PAIRS, keys))
    assert said in found
    assert bool(found) == bool(said)


def test_a_key_that_ssh_may_find_by_itself_is_no_error() -> None:
    """It may be in an agent, which nobody asks."""
    named = kind(KeyName="mine")
    assert words(access.of_key_pair(named, PAIRS, [], certain=False)).startswith("warning: ")
    assert not access.of_key_pair(named, PAIRS, ["x", PAIRS["mine"]], certain=False)
    assert not access.of_key_pair(kind(KeyName="secret"), PAIRS, [], certain=False)
    assert "error" in words(access.of_key_pair(kind(KeyName="other"), PAIRS, [], certain=False))


@pytest.mark.parametrize(
    ("group", "locked_out"),
    [("sg-open", False), ("sg-all", False), ("sg-web", True), ("sg-other", True)],
)
def test_groups_that_would_lock_us_out_are_told(group: str, locked_out: bool) -> None:
    found = access.of_groups(kind(SecurityGroupIds=[group]), GROUPS, HERE)
    assert ("lets SSH in from 203.0.113.7/32" in words(found)) == locked_out


def test_a_group_that_names_a_prefix_list_may_let_us_in() -> None:
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": []}
    company = {"sg-vpn": {"IpPermissions": [{**rule, "PrefixListIds": [{"PrefixListId": "pl-1"}]}]}}
    (found,) = access.of_groups(kind(SecurityGroupIds=["sg-vpn"]), company, HERE)
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("config", "directly"),
    [
        ({"SubnetIds": ["out"]}, True),
        ({"SubnetIds": ["in"]}, False),
        ({"SubnetIds": ["in", "out"]}, True),
        ({}, True),
        ({"SubnetIds": ["in"], "NetworkInterfaces": [{"AssociatePublicIpAddress": True}]}, True),
        ({"NetworkInterfaces": [{"AssociatePublicIpAddress": False}]}, False),
        ({"SubnetIds": ["nowhere"]}, True),
    ],
)
def test_machines_without_an_address_out_here_are_met_by_another_way(
    config: dict[str, Any], directly: bool
) -> None:
    known = [
        {"SubnetId": id, "AvailabilityZone": "a", "VpcId": "v", "MapPublicIpOnLaunch": id == "out"}
        for id in ("in", "out")
    ]
    assert access.is_met_directly(kind(**config), cluster(), known) == directly


def test_a_minimum_above_the_quota_is_told_with_what_is_left() -> None:
    kinds = [kind(workers=10), kind("g5.xlarge", workers=1)]
    limits = {("standard", "on-demand"): 16.0, ("g", "on-demand"): 4.0}
    found = quotas.judge(kinds, FACTS.types, limits, {("standard", "on-demand"): 6.0})
    (only,) = found
    assert only.what == (
        "20 vCPUs of on-demand standard machines are wanted, and the quota leaves 10"
    )


P3 = MachineType("p3.2xlarge", "x86_64", {"CPU": 8, "GPU": 1})
SPOT: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}


@pytest.mark.parametrize(
    ("wished", "limits", "verdict"),
    [
        # Every new account begins with none of these.
        (kind("p3.2xlarge", workers=1), {("p", "on-demand"): 0.0}, "error"),
        (
            replace(kind("p3.2xlarge", workers=1), fallback=("g5.xlarge",)),
            {("p", "on-demand"): 0.0, ("g", "on-demand"): 4.0},
            "warning",
        ),
        (
            replace(kind("p3.2xlarge", workers=2), fallback=("g5.xlarge",)),
            {("p", "on-demand"): 0.0, ("g", "on-demand"): 4.0},
            "error",
        ),
        (kind(workers=1, **SPOT), {("standard", "spot"): 0.0}, "error"),
        (
            replace(kind(workers=1, **SPOT), on_demand_too=True),
            {("standard", "spot"): 0.0, ("standard", "on-demand"): 2.0},
            "warning",
        ),
    ],
)
def test_a_quota_stops_only_what_the_file_does_not_allow_elsewhere(
    wished: NodeTypeCheck, limits: dict[quotas.Quota, float], verdict: str
) -> None:
    machines = {**FACTS.types, P3.name: P3}
    (found,) = quotas.judge([wished], machines, limits, {})
    assert found.severity == verdict


def of_machine(choice: NodeTypeCheck) -> list[Finding]:
    return checks.of_type(choice, FACTS, ZONES, "us-west-2") + checks.of_image(choice, FACTS)


def test_a_machine_that_another_may_stand_in_for_stops_nothing() -> None:
    elsewhere = replace(kind("g5.xlarge"), fallback=("m5.large",))
    (found,) = checks.of_choices(elsewhere, of_machine)
    assert (found.severity, "g5.xlarge is not offered" in found.what) == ("warning", True)


def test_what_stands_in_is_examined_too_and_named_where_it_stands() -> None:
    odd = replace(kind(ImageId="ami-x86"), fallback=("m5.lrage", "m6g.large"))
    misspelt, arm = checks.of_choices(odd, of_machine)
    assert {misspelt.severity, arm.severity} == {"warning"}
    assert misspelt.fix == "take m5.lrage out of shoal.fallback"
    assert misspelt.at == ("shoal", "fallback", "worker")
    assert "is for x86_64, and m6g.large is arm64" in arm.what


def test_where_nothing_will_do_the_wish_is_an_error() -> None:
    hopeless = replace(kind("m5.lrage"), fallback=("g5.xlarge",))
    wish, other = checks.of_choices(hopeless, of_machine)
    assert (wish.severity, other.severity) == ("error", "warning")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("m5.large", "standard"),
        ("c6gn.xlarge", "standard"),
        ("g5.xlarge", "g"),
        ("p4d.24xlarge", "p"),
        ("trn1.2xlarge", "trn"),
        ("inf2.xlarge", "inf"),
        ("x2idn.16xlarge", "x"),
        ("t3.micro", "standard"),
        ("i4i.large", "standard"),
        ("vt1.3xlarge", "g"),
    ],
)
def test_types_share_the_quota_of_their_family(name: str, family: str) -> None:
    assert quotas.family(name) == family
