"""What AWS must allow, and nothing more: the identity of a head, and of the person who calls.

Both are told by tags: a machine without a cluster's tag is out of reach.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.providers.aws import client, tags

_EC2 = "ec2.amazonaws.com"

# Who may take on the head's role: a machine, and nobody else.
TRUST: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": _EC2},
            "Action": "sts:AssumeRole",
        }
    ],
}

_LOOK = [
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeKeyPairs",
    "ec2:DescribeVpcs",
    "ec2:DescribeVolumes",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeSpotPriceHistory",
    "ssm:GetParameters",
    "pricing:GetProducts",
]
# What only a person asks: before a launch, and about everything that an account has.
_LOOK_AHEAD = [
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeRegions",
    "iam:ListInstanceProfiles",
    "servicequotas:GetServiceQuota",
]
_CHANGE = ["ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances"]
# RunInstances is allowed or refused for each thing that it touches; these it only uses.
_USED = [
    "image/*",
    "key-pair/*",
    "network-interface/*",
    "security-group/*",
    "subnet/*",
    # Where node_config asks for them.
    "capacity-reservation/*",
    "placement-group/*",
    "snapshot/*",
]
_SPOT = "spot.amazonaws.com"


def text(document: Mapping[str, Any], region: str) -> str:
    """A policy as IAM takes it in the part of AWS that this region is in: in China and for
    governments, things and services have other names."""
    name, suffix = client.partition(region)
    plain = json.dumps(document, indent=2)
    return plain.replace('"arn:aws:', f'"arn:{name}:').replace(f'"{_EC2}"', f'"ec2.{suffix}"')


def for_head(cluster: str, region: str, repositories: Sequence[str] = ()) -> dict[str, Any]:
    """What the controller on a head needs: launch, stop and end machines of its own cluster, and
    read the images that its nodes are made from."""
    return _policy([_look(), *_machines(cluster, region), *_images(repositories)])


def for_buckets(buckets: Mapping[str, bool], passes: Sequence[str] = ()) -> dict[str, Any]:
    """What a machine needs that uses these buckets, by name: to read, and where it is false, to
    write as well. A head `passes` its workers roles of theirs, by ARN."""
    statements = []
    if buckets:
        read = [f"arn:aws:s3:::{b}/*" for b in buckets]
        statements.append(_allow("List", ["s3:ListBucket"], [f"arn:aws:s3:::{b}" for b in buckets]))
        statements.append(_allow("Read", ["s3:GetObject"], read))
    written = [f"arn:aws:s3:::{b}/*" for b, read_only in buckets.items() if not read_only]
    if written:
        write = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        statements.append(_allow("Write", write, written))
    if passes:
        statements.append(_allow("PassToWorkers", ["iam:PassRole"], list(passes)))
    return _policy(statements)


def role_arn(name: str) -> str:
    """A role of this name, in whatever account; those that we make have a path of their own."""
    return f"arn:aws:iam::*:role/{name}"


def for_caller() -> dict[str, Any]:
    """What a person needs for `up`, `down` and all other commands, in every region."""
    made = ["key-pair/*", "security-group/*"]
    return _policy(
        [
            _look(),
            _allow("LookAhead", _LOOK_AHEAD, ["*"]),
            *_machines("*", "*"),
            _allow("FindFileSystems", ["elasticfilesystem:DescribeFileSystems"], ["*"]),
            *_images(["arn:aws:ecr:*:*:repository/*"]),
            _allow(
                "RemoveWhatWasLeft",
                ["ec2:DeleteVolume"],
                [_ec2("*", "volume/*")],
                {"StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": "*"}},
            ),
            _allow(
                "Foundation",
                [
                    "ec2:ImportKeyPair",
                    "ec2:DeleteKeyPair",
                    "ec2:CreateSecurityGroup",
                    "ec2:DeleteSecurityGroup",
                    "ec2:AuthorizeSecurityGroupIngress",
                ],
                [_ec2("*", kind) for kind in (*made, "vpc/*")],
            ),
            _allow(
                "TagFoundation",
                ["ec2:CreateTags"],
                [_ec2("*", kind) for kind in made],
                {
                    "StringEquals": {
                        "ec2:CreateAction": ["ImportKeyPair", "CreateSecurityGroup"],
                    }
                },
            ),
            _allow(
                "Identity",
                [
                    "iam:GetInstanceProfile",
                    "iam:CreateInstanceProfile",
                    "iam:DeleteInstanceProfile",
                    "iam:TagInstanceProfile",
                    "iam:AddRoleToInstanceProfile",
                    "iam:RemoveRoleFromInstanceProfile",
                    "iam:CreateRole",
                    "iam:DeleteRole",
                    "iam:TagRole",
                    "iam:PutRolePolicy",
                    "iam:DeleteRolePolicy",
                    "iam:PassRole",
                ],
                [f"arn:aws:iam::*:{kind}/shoal/*" for kind in ("instance-profile", "role")],
            ),
            _allow(
                "FirstSpotMachine",
                ["iam:CreateServiceLinkedRole"],
                [role_arn(f"aws-service-role/{_SPOT}/*")],
                {"StringEquals": {"iam:AWSServiceName": _SPOT}},
            ),
        ]
    )


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def _look() -> dict[str, Any]:
    return _allow("Look", _LOOK, ["*"])


def _images(repositories: Sequence[str]) -> list[dict[str, Any]]:
    if not repositories:
        return []
    read = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    return [
        _allow("LogInToImages", ["ecr:GetAuthorizationToken"], ["*"]),
        _allow("ReadImages", read, list(repositories)),
    ]


def _machines(cluster: str, region: str) -> list[dict[str, Any]]:
    made = [_ec2(region, kind) for kind in ("instance/*", "volume/*")]
    return [
        _allow(
            "Launch", ["ec2:RunInstances"], made,
            {"StringLike": {f"aws:RequestTag/{tags.CLUSTER}": cluster}},
        ),
        _allow("LaunchWith", ["ec2:RunInstances"], [_ec2(region, kind) for kind in _USED]),
        _allow(
            "TagWhatIsLaunched", ["ec2:CreateTags"], made,
            {"StringEquals": {"ec2:CreateAction": "RunInstances"}},
        ),
        _allow(
            "SayHowFarItIs", ["ec2:CreateTags"], [_ec2(region, "instance/*")],
            {
                "StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": cluster},
                "ForAllValues:StringEquals": {"aws:TagKeys": [tags.RAY_STATUS]},
            },
        ),
        _allow(
            "End", _CHANGE, [_ec2(region, "instance/*")],
            {"StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": cluster}},
        ),
    ]  # fmt: skip


def _allow(
    name: str, actions: list[str], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": name,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resources,
    }
    return {**statement, "Condition": condition} if condition else statement


def _ec2(region: str, what: str) -> str:
    # An image or a snapshot has no account in its name.
    return f"arn:aws:ec2:{region}:{'' if what.startswith(('image', 'snapshot')) else '*'}:{what}"
