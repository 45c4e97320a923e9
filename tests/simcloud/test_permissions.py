"""Calls are authorized as in AWS: for every resource that they touch, by the caller's policies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.simcloud.aws_permissions import Permissions
from tests.simcloud.calls import Call

ROLE = "head"
INVENTORY: dict[str, list[dict[str, Any]]] = {
    "instances": [{"id": "i-1", "tags": {"shoal-cluster": "mine"}}],
    "images": [],
    "snapshots": [],
    "volumes": [],
    "groups": [],
    "profiles": [{"id": "workers", "arn": "arn:aws:iam::1:x", "roles": ["worker"]}],
    "roles": [],
}
LAUNCH = {
    "ImageId": "ami-1",
    "SubnetId": "subnet-1",
    "TagSpecification.1.ResourceType": "instance",
    "TagSpecification.1.Tag.1.Key": "shoal-cluster",
    "TagSpecification.1.Tag.1.Value": "mine",
}


def allow(*actions: str, resource: str = "*", **condition: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
    return {**statement, "Condition": condition} if condition else statement


def refusal(
    action: str,
    params: dict[str, str],
    *statements: dict[str, Any],
    service: str = "ec2",
    boundary: dict[str, Any] | None = None,
) -> str:
    """What the role lacks for a call; empty if nothing."""
    document = json.dumps({"Version": "2012-10-17", "Statement": list(statements)})
    limits = [json.dumps({"Statement": boundary})] if boundary else []
    role = {"id": ROLE, "arn": "", "policies": [document], "boundary": limits, "boundary_arn": None}
    inventory = {**INVENTORY, "roles": [role]}
    call = Call(1, service, action, "us-west-2", "key", "", params)
    error = Permissions().refuse(call, b"{}", inventory, ROLE)
    return error.message if error else ""


def test_a_role_without_policies_may_only_ask_who_it_is() -> None:
    assert "ec2:DescribeInstances on resource: *" in refusal("DescribeInstances", {})
    assert refusal("GetCallerIdentity", {}, service="sts") == ""


@pytest.mark.parametrize("kind", ["instance", "volume", "network-interface", "image", "subnet"])
def test_a_launch_needs_every_resource_that_it_touches(kind: str) -> None:
    kinds = ("instance", "volume", "network-interface", "image", "subnet")
    granted = [
        allow("ec2:RunInstances", resource=f"arn:aws:ec2:*:*:{other}/*")
        for other in kinds
        if other != kind
    ]
    assert f":{kind}/" in refusal("RunInstances", LAUNCH, allow("ec2:CreateTags"), *granted)


def test_a_launch_needs_its_tags_its_role_and_its_spot_request() -> None:
    run = allow("ec2:RunInstances")
    assert "ec2:CreateTags" in refusal("RunInstances", LAUNCH, run)
    tag = allow("ec2:CreateTags", StringEquals={"ec2:CreateAction": "RunInstances"})
    assert refusal("RunInstances", LAUNCH, run, tag) == ""
    with_role = {**LAUNCH, "IamInstanceProfile.Name": "workers"}
    assert "iam:PassRole" in refusal("RunInstances", with_role, run, tag)
    spot = {**LAUNCH, "InstanceMarketOptions.MarketType": "spot"}
    only = allow("ec2:RunInstances", resource="arn:aws:ec2:*:*:[a-z]*")
    assert refusal("RunInstances", spot, only, tag) != ""
    assert refusal("RunInstances", spot, run, tag) == ""


def test_a_condition_is_met_only_by_the_tag_of_that_resource() -> None:
    own = allow("ec2:TerminateInstances", StringLike={"aws:ResourceTag/shoal-cluster": "mine"})
    assert refusal("TerminateInstances", {"InstanceId.1": "i-1"}, own) == ""
    assert "instance/i-2" in refusal("TerminateInstances", {"InstanceId.1": "i-2"}, own)


def test_a_boundary_limits_what_policies_allow() -> None:
    everything = allow("*")
    reads = allow("ec2:Describe*")
    assert refusal("DescribeInstances", {}, everything, boundary=reads) == ""
    assert refusal("TerminateInstances", {"InstanceId.1": "i-1"}, everything, boundary=reads) != ""


def test_iam_does_not_know_the_path_of_what_does_not_exist() -> None:
    below_path = allow("iam:GetInstanceProfile", resource="arn:aws:iam::*:instance-profile/shoal/*")
    request = {"InstanceProfileName": "shoal-mine"}
    assert "instance-profile/shoal-mine" in refusal(
        "GetInstanceProfile", request, below_path, service="iam"
    )
