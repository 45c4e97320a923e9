"""Preflight checks on records of AWS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.providers.aws.instance_types import InstanceTypeInfo
from shoal.providers.aws.preflight import access, checks, quotas, volume_checks
from shoal.providers.aws.preflight.checks import Facts, NodeTypeCheck
from shoal.providers.model import Finding
from shoal.providers.vm.node_type_check import check_candidates
from tests.specs import cluster

ZONES = {"us-west-2a", "us-west-2b"}
M5 = InstanceTypeInfo("m5.large", "x86_64", {"CPU": 2})
G5 = InstanceTypeInfo("g5.xlarge", "x86_64", {"CPU": 4, "GPU": 1})
ARM = InstanceTypeInfo("m6g.large", "arm64", {"CPU": 2})
FACTS = Facts(
    types={m.name: m for m in (M5, G5, ARM)},
    zones={"m5.large": ZONES, "g5.xlarge": {"us-west-2c"}, "m6g.large": ZONES},
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
CALLER = ["203.0.113.7/32"]


def node_type(instance_type: str = "m5.large", *, workers: int = 0, **config: Any) -> NodeTypeCheck:
    return NodeTypeCheck(
        "worker", {"InstanceType": instance_type, **config}, workers, is_head=False
    )


def root(gib: int) -> list[dict[str, Any]]:
    return [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": gib}}]


def as_text(findings: list[Any]) -> str:
    return "\n".join(f"{f.severity}: {f.what} | {f.fix}" for f in findings)


def test_a_valid_node_type_has_no_findings() -> None:
    valid = node_type(ImageId="ami-x86", KeyName="mine", SecurityGroupIds=["sg-open"])
    assert checks.check_region("us-west-2", {"us-west-2"}) == []
    assert checks.check_instance_type(valid, FACTS, ZONES, "us-west-2") == []
    assert checks.check_ami(valid, FACTS) == []
    assert volume_checks.check_root_volume(valid, FACTS) == []
    assert access.check_key_pair(valid, PAIRS, [PAIRS["mine"]]) == []
    assert access.check_security_groups(valid, GROUPS, CALLER) == []


def test_a_deprecated_ami_is_a_warning_from_its_deprecation_on() -> None:
    (known,) = FACTS.images.values()
    image = {**known, "DeprecationTime": "2022-05-01T00:00:00.000Z"}
    facts = replace(FACTS, images={"ami-x86": image})
    old = node_type(ImageId="ami-x86")
    (finding,) = checks.check_ami(old, replace(facts, now=1_700_000_000.0))
    assert finding.severity == "warning"
    assert "the AMI ami-x86 is deprecated since 2022-05-01" in finding.what
    assert checks.check_ami(old, replace(facts, now=1_600_000_000.0)) == []


@pytest.mark.parametrize(
    ("name", "user", "warnings"),
    [
        ("al2023-ami-2023.6-kernel-6.1-x86_64", "ubuntu", 1),
        ("Deep Learning AMI (Amazon Linux 2) Version 60", "ubuntu", 1),
        ("al2023-ami-2023.6-kernel-6.1-x86_64", "ec2-user", 0),
        ("ubuntu-22.04", "ubuntu", 0),
    ],
)
def test_amazon_linux_has_another_user(name: str, user: str, warnings: int) -> None:
    (known,) = FACTS.images.values()
    facts = replace(FACTS, images={"ami-x86": {**known, "Name": name}}, ssh_user=user)
    found = checks.check_ami(node_type(ImageId="ami-x86"), facts)
    assert [f.fix for f in found] == ["ssh_user: ec2-user"] * warnings


def test_a_misspelt_region_is_reported_with_the_right_one() -> None:
    findings = checks.check_region("us-wst-2", {"us-west-2", "eu-central-1"})
    assert "provider: {region: us-west-2}" in as_text(findings)


def test_a_type_that_region_or_zones_do_not_offer_is_reported() -> None:
    assert "no instance type m99.huge" in as_text(
        checks.check_instance_type(node_type("m99.huge"), FACTS, ZONES, "us-west-2")
    )
    findings = checks.check_instance_type(node_type("g5.xlarge"), FACTS, ZONES, "us-west-2")
    assert "g5.xlarge is not offered in us-west-2a, us-west-2b" in as_text(findings)
    assert 'provider: {availability_zone: "us-west-2c"}' in as_text(findings)
    assert findings[0].at == ("node_types", "worker", "node_config", "InstanceType")


@pytest.mark.parametrize(
    ("checked", "message"),
    [
        (node_type(ImageId="ami-none"), "error: there is no AMI ami-none"),
        (node_type("m6g.large", ImageId="ami-x86"), "is for x86_64, but m6g.large is arm64"),
        (node_type("g5.xlarge", ImageId="ami-x86"), "warning: the AMI ami-x86 may have no drivers"),
        (
            node_type(ImageId="ami-x86", BlockDeviceMappings=root(8)),
            "the root volume of 8 GiB is smaller than the AMI's 30 GiB | VolumeSize: 30",
        ),
    ],
)
def test_an_unsuitable_ami_is_reported(checked: NodeTypeCheck, message: str) -> None:
    assert message in as_text(
        checks.check_ami(checked, FACTS) + volume_checks.check_root_volume(checked, FACTS)
    )


@pytest.mark.parametrize(
    ("gib", "message"),
    [
        (100, "error: the image big does not fit on a root volume of 100 GiB | VolumeSize: 1220"),
        (600, "warning: the image big may not fit on a root volume of 600 GiB | VolumeSize: 1220"),
        (900, ""),
    ],
)
def test_a_container_image_must_fit_on_the_root_volume(gib: int, message: str) -> None:
    checked = replace(
        node_type(BlockDeviceMappings=root(gib)), container_images={"big": ("docker", "image")}
    )
    assert (
        as_text(volume_checks.check_container_images(checked, FACTS, {"big": 405 * 2**30}))
        == message
    )


def test_container_images_must_fit_on_the_default_root_volume() -> None:
    checked = replace(node_type(ImageId="ami-x86"), container_images={"big": ("docker", "image")})
    assert volume_checks.check_container_images(checked, FACTS, {"big": 40 * 2**30}) == []
    findings = as_text(volume_checks.check_container_images(checked, FACTS, {"big": 99 * 2**30}))
    assert "a root volume of 100 GiB" in findings
    assert "BlockDeviceMappings: [{DeviceName: /dev/sda1, Ebs: {VolumeSize: 300}}]" in findings


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("/dev/sda1", ""),
        ("/dev/sdf", ""),
        ("/dev/xvda", "warning: /dev/xvda is not the root device of the AMI, /dev/sda1 is"),
    ],
)
def test_a_volume_for_the_root_must_be_at_the_amis_root_device(device: str, message: str) -> None:
    mappings = [{"DeviceName": device, "Ebs": {"VolumeSize": 140}}]
    checked = node_type(ImageId="ami-x86", BlockDeviceMappings=mappings)
    assert message in as_text(volume_checks.check_root_device(checked, FACTS))
    assert bool(message) == bool(volume_checks.check_root_device(checked, FACTS))


def test_a_container_image_of_unknown_size_is_not_reported() -> None:
    checked = replace(node_type(ImageId="ami-x86"), container_images={"big": ("docker", "image")})
    assert volume_checks.check_container_images(checked, FACTS, {"big": None}) == []


@pytest.mark.parametrize(
    ("pair", "key", "message"),
    [
        ("other", "ssh-ed25519 AAAAmine", "there is no key pair other"),
        ("mine", None, "the private key of key pair mine is missing on this machine"),
        (
            "mine",
            "ssh-ed25519 AAAAelse",
            "the private key of key pair mine is missing on this machine",
        ),
        ("mine", "ssh-ed25519 AAAAmine me@laptop", ""),
        ("secret", "ssh-ed25519 AAAAmine", ""),
    ],
)
def test_a_key_pair_without_its_private_key_is_reported(
    pair: str, key: str | None, message: str
) -> None:
    keys = [] if key is None else [key]
    findings = as_text(access.check_key_pair(node_type(KeyName=pair), PAIRS, keys))
    assert message in findings
    assert bool(findings) == bool(message)


def test_a_key_that_ssh_may_find_itself_is_only_a_warning() -> None:
    """An SSH agent may have it."""
    checked = node_type(KeyName="mine")
    assert as_text(access.check_key_pair(checked, PAIRS, [], certain=False)).startswith("warning: ")
    assert not access.check_key_pair(checked, PAIRS, ["x", PAIRS["mine"]], certain=False)
    assert not access.check_key_pair(node_type(KeyName="secret"), PAIRS, [], certain=False)
    assert "error" in as_text(
        access.check_key_pair(node_type(KeyName="other"), PAIRS, [], certain=False)
    )


@pytest.mark.parametrize(
    ("group", "is_denied"),
    [("sg-open", False), ("sg-all", False), ("sg-web", True), ("sg-other", True)],
)
def test_security_groups_without_ssh_from_the_caller_are_reported(
    group: str, is_denied: bool
) -> None:
    findings = access.check_security_groups(node_type(SecurityGroupIds=[group]), GROUPS, CALLER)
    assert ("allows SSH from 203.0.113.7/32" in as_text(findings)) == is_denied


def test_a_security_group_with_a_prefix_list_is_only_a_warning() -> None:
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": []}
    groups = {"sg-vpn": {"IpPermissions": [{**rule, "PrefixListIds": [{"PrefixListId": "pl-1"}]}]}}
    (finding,) = access.check_security_groups(
        node_type(SecurityGroupIds=["sg-vpn"]), groups, CALLER
    )
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("config", "is_public"),
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
def test_public_addresses_depend_on_the_interface_or_the_subnets(
    config: dict[str, Any], is_public: bool
) -> None:
    records = [
        {"SubnetId": id, "AvailabilityZone": "a", "VpcId": "v", "MapPublicIpOnLaunch": id == "out"}
        for id in ("in", "out")
    ]
    assert access.has_public_address(node_type(**config), cluster(), records, {}) == is_public


def test_a_minimum_size_above_the_quota_is_reported_with_what_is_left() -> None:
    node_types = [node_type(workers=10), node_type("g5.xlarge", workers=1)]
    limits = {("standard", "on-demand"): 16.0, ("g", "on-demand"): 4.0}
    findings = quotas.check_quotas(
        node_types, FACTS.types, limits, {("standard", "on-demand"): 6.0}
    )
    (only,) = findings
    assert only.what == (
        "the cluster needs 20 vCPUs of on-demand standard instances, but the quota leaves 10"
    )


P3 = InstanceTypeInfo("p3.2xlarge", "x86_64", {"CPU": 8, "GPU": 1})
SPOT: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}


@pytest.mark.parametrize(
    ("checked", "limits", "severity"),
    [
        # New accounts have a quota of 0 for these.
        (node_type("p3.2xlarge", workers=1), {("p", "on-demand"): 0.0}, "error"),
        (
            replace(node_type("p3.2xlarge", workers=1), fallback=("g5.xlarge",)),
            {("p", "on-demand"): 0.0, ("g", "on-demand"): 4.0},
            "warning",
        ),
        (
            replace(node_type("p3.2xlarge", workers=2), fallback=("g5.xlarge",)),
            {("p", "on-demand"): 0.0, ("g", "on-demand"): 4.0},
            "error",
        ),
        (node_type(workers=1, **SPOT), {("standard", "spot"): 0.0}, "error"),
        (
            replace(node_type(workers=1, **SPOT), on_demand_fallback=True),
            {("standard", "spot"): 0.0, ("standard", "on-demand"): 2.0},
            "warning",
        ),
    ],
)
def test_a_quota_is_an_error_only_if_no_fallback_fits(
    checked: NodeTypeCheck, limits: dict[quotas.Quota, float], severity: str
) -> None:
    types = {**FACTS.types, P3.name: P3}
    (finding,) = quotas.check_quotas([checked], types, limits, {})
    assert finding.severity == severity


def check_type_and_ami(candidate: NodeTypeCheck) -> list[Finding]:
    return checks.check_instance_type(candidate, FACTS, ZONES, "us-west-2") + checks.check_ami(
        candidate, FACTS
    )


def test_an_unavailable_type_with_a_usable_fallback_is_only_a_warning() -> None:
    checked = replace(node_type("g5.xlarge"), fallback=("m5.large",))
    (finding,) = check_candidates(checked, check_type_and_ami)
    assert (finding.severity, "g5.xlarge is not offered" in finding.what) == ("warning", True)


def test_fallback_types_are_checked_and_located_in_the_file() -> None:
    checked = replace(node_type(ImageId="ami-x86"), fallback=("m5.lrage", "m6g.large"))
    misspelt, arm = check_candidates(checked, check_type_and_ami)
    assert {misspelt.severity, arm.severity} == {"warning"}
    assert misspelt.fix == "remove m5.lrage from shoal.fallback"
    assert misspelt.at == ("shoal", "fallback", "worker")
    assert "is for x86_64, but m6g.large is arm64" in arm.what


def test_a_type_without_any_usable_fallback_is_an_error() -> None:
    checked = replace(node_type("m5.lrage"), fallback=("g5.xlarge",))
    preferred, other = check_candidates(checked, check_type_and_ami)
    assert (preferred.severity, other.severity) == ("error", "warning")


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
def test_instance_types_count_against_the_quota_of_their_family(name: str, family: str) -> None:
    assert quotas.family(name) == family


def test_p5_has_a_spot_quota_of_its_own_and_shares_the_on_demand_quota() -> None:
    spot = {"MarketType": "spot"}
    assert quotas.quota_of(node_type("p5.48xlarge", InstanceMarketOptions=spot)) == ("p5", "spot")
    assert quotas.quota_of(node_type("p4d.24xlarge", InstanceMarketOptions=spot)) == ("p", "spot")
    assert quotas.quota_of(node_type("p5.48xlarge")) == quotas.quota_of(node_type("p3.2xlarge"))
