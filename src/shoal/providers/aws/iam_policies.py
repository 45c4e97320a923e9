"""IAM policy documents: the least that a head, a cluster's workers and the calling user need.

Permissions on existing instances are limited by tag: an instance without a cluster's tag is out of
reach.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.providers.aws import aws_client, tags

_EC2 = "ec2.amazonaws.com"

# Only EC2 instances may assume the roles that Shoal creates.
EC2_TRUST_POLICY: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": _EC2},
            "Action": "sts:AssumeRole",
        }
    ],
}

_READ_ACTIONS = [
    "ec2:DescribeImages",
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
# Needed by the user only: for preflight checks and account-wide listings.
_PREFLIGHT_ACTIONS = [
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:GetEbsDefaultKmsKeyId",
    "ec2:DescribeRegions",
    "ec2:DescribeRouteTables",
    "iam:GetInstanceProfile",
    "iam:ListInstanceProfiles",
    "servicequotas:GetServiceQuota",
]
_LIFECYCLE_ACTIONS = ["ec2:TerminateInstances", "ec2:StopInstances", "ec2:StartInstances"]
# RunInstances is authorized for each resource that it touches; these it uses without creating them.
_RUN_INSTANCES_RESOURCES = [
    "image/*",
    "key-pair/*",
    "network-interface/*",
    "security-group/*",
    "spot-instances-request/*",
    "subnet/*",
    # Only if node_config names them.
    "capacity-reservation/*",
    "placement-group/*",
    "snapshot/*",
]
_IMAGE_RESOURCES = ["image/*", "snapshot/*"]
_SPOT = "spot.amazonaws.com"


def to_json(document: Mapping[str, Any], region: str) -> str:
    """A policy as IAM accepts it in the partition of this region: China and GovCloud have their
    own ARN prefixes and service names."""
    name, suffix = aws_client.partition(region)
    text = json.dumps(document, indent=2)
    return text.replace('"arn:aws:', f'"arn:{name}:').replace(f'"{_EC2}"', f'"ec2.{suffix}"')


def head_policy(cluster: str, region: str, repositories: Sequence[str] = ()) -> dict[str, Any]:
    """For the controller on a head: launch, stop and terminate instances of its own cluster, and
    pull the container images of its nodes."""
    return _policy(
        [_read_statement(), *_instance_statements(cluster, region), *_ecr_statements(repositories)]
    )


def bake_policy(cluster: str, region: str) -> dict[str, Any]:
    """For a head whose cluster bakes images: make images of its own cluster's instances, tagged as
    such, and delete them. It may read none of their data."""
    return _policy(_bake_statements(cluster, region))


def bucket_policy(buckets: Mapping[str, bool], pass_roles: Sequence[str] = ()) -> dict[str, Any]:
    """Access to these buckets, by name: read-only where the value is true, else read and write. A
    head may also pass these roles, by ARN, to its workers."""
    statements = []
    if buckets:
        objects = [f"arn:aws:s3:::{bucket}/*" for bucket in buckets]
        names = [f"arn:aws:s3:::{bucket}" for bucket in buckets]
        statements.append(_allow("ListBuckets", ["s3:ListBucket"], names))
        statements.append(_allow("ReadObjects", ["s3:GetObject"], objects))
    writable = [
        f"arn:aws:s3:::{bucket}/*" for bucket, read_only in buckets.items() if not read_only
    ]
    if writable:
        actions = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        statements.append(_allow("WriteObjects", actions, writable))
    if pass_roles:
        statements.append(_allow("PassRolesToWorkers", ["iam:PassRole"], list(pass_roles)))
    return _policy(statements)


def volume_key_policy(keys: Sequence[str]) -> dict[str, Any]:
    """Use of these KMS keys, by ARN, for the volumes of instances that the head launches."""
    return _policy(_volume_key_statements(keys))


def role_arn(name: str) -> str:
    """The ARN of a role of this name, which may include a path, in any account."""
    return f"arn:aws:iam::*:role/{name}"


def boundary_policy() -> dict[str, Any]:
    """The most that any role which Shoal creates may need: a permissions boundary for them. Without
    one, who may create roles below /shoal/ may give them, and so themselves, any permission."""
    buckets = ["arn:aws:s3:::*"]
    objects = ["s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    return _policy(
        [
            _read_statement(),
            *_instance_statements("*", "*"),
            *_bake_statements("*", "*"),
            *_ecr_statements(["arn:aws:ecr:*:*:repository/*"]),
            _allow("UseBuckets", [*objects, "s3:AbortMultipartUpload"], buckets),
            *_volume_key_statements(["arn:aws:kms:*:*:key/*"]),
            _allow("PassRolesToWorkers", ["iam:PassRole"], [role_arn("shoal/*")]),
        ]
    )


def caller_policy(boundary: str = "") -> dict[str, Any]:
    """For the user of `up`, `down` and all other commands, in every region. With the ARN of a
    permissions boundary, the user can create roles only with that boundary."""
    created = ["key-pair/*", "security-group/*"]
    has_boundary = {"StringEquals": {"iam:PermissionsBoundary": boundary}} if boundary else None
    kinds = ("instance-profile", "role")
    own_resources = [f"arn:aws:iam::*:{kind}/shoal/*" for kind in kinds]
    # IAM does not know the path of what does not exist, and would deny the question.
    own_names = [f"arn:aws:iam::*:{kind}/shoal-*" for kind in kinds]
    return _policy(
        [
            _read_statement(),
            _allow("ReadForPreflight", _PREFLIGHT_ACTIONS, ["*"]),
            *_instance_statements("*", "*"),
            _allow(
                "TerminateLeftoversOfRay",
                ["ec2:TerminateInstances"],
                [_ec2_arn("*", "instance/*")],
                {"StringLike": {f"aws:ResourceTag/{tags.RAY_CLUSTER_NAME}": "*"}},
            ),
            *_bake_statements("*", "*"),
            _allow("DescribeFileSystems", ["elasticfilesystem:DescribeFileSystems"], ["*"]),
            *_ecr_statements(["arn:aws:ecr:*:*:repository/*"]),
            _allow(
                "DeleteLeftoverVolumes",
                ["ec2:DeleteVolume"],
                [_ec2_arn("*", "volume/*")],
                {"StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": "*"}},
            ),
            _allow(
                "ManageKeyPairsAndSecurityGroups",
                [
                    "ec2:ImportKeyPair",
                    "ec2:DeleteKeyPair",
                    "ec2:CreateSecurityGroup",
                    "ec2:DeleteSecurityGroup",
                    "ec2:AuthorizeSecurityGroupIngress",
                    "ec2:RevokeSecurityGroupIngress",
                ],
                [_ec2_arn("*", resource) for resource in (*created, "vpc/*")],
            ),
            _allow(
                "TagKeyPairsAndSecurityGroups",
                ["ec2:CreateTags"],
                [_ec2_arn("*", resource) for resource in created],
                {
                    "StringEquals": {
                        "ec2:CreateAction": ["ImportKeyPair", "CreateSecurityGroup"],
                    }
                },
            ),
            _allow(
                "ManageClusterRoles",
                [
                    "iam:CreateInstanceProfile",
                    "iam:TagInstanceProfile",
                    "iam:AddRoleToInstanceProfile",
                    "iam:TagRole",
                    "iam:PassRole",
                ],
                own_resources,
            ),
            _allow(
                "DeleteClusterRoles",
                [
                    "iam:DeleteInstanceProfile",
                    "iam:RemoveRoleFromInstanceProfile",
                    "iam:DeleteRole",
                    "iam:DeleteRolePolicy",
                    "iam:ListRolePolicies",
                    "iam:ListAttachedRolePolicies",
                    "iam:DetachRolePolicy",
                ],
                [*own_resources, *own_names],
            ),
            _allow(
                "CreateClusterRoles",
                ["iam:CreateRole", "iam:PutRolePolicy"],
                own_resources[1:],
                has_boundary,
            ),
            _allow(
                "CreateSpotServiceLinkedRole",
                ["iam:CreateServiceLinkedRole"],
                [role_arn(f"aws-service-role/{_SPOT}/*")],
                {"StringEquals": {"iam:AWSServiceName": _SPOT}},
            ),
        ]
    )


def _policy(statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": statements}


def _read_statement() -> dict[str, Any]:
    return _allow("ReadResourcesAndPrices", _READ_ACTIONS, ["*"])


def _ecr_statements(repositories: Sequence[str]) -> list[dict[str, Any]]:
    if not repositories:
        return []
    pull = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    return [
        _allow("GetEcrLogin", ["ecr:GetAuthorizationToken"], ["*"]),
        _allow("PullEcrImages", pull, list(repositories)),
    ]


def _volume_key_statements(keys: Sequence[str]) -> list[dict[str, Any]]:
    """EC2 needs a grant on the key for as long as a volume is attached."""
    use = [
        "kms:Decrypt",
        "kms:DescribeKey",
        "kms:GenerateDataKeyWithoutPlaintext",
        "kms:ReEncrypt*",
    ]
    for_volumes = {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    return [
        _allow("UseVolumeKeys", use, list(keys)),
        _allow("GrantVolumeKeysToEc2", ["kms:CreateGrant"], list(keys), for_volumes),
    ]


def _instance_statements(cluster: str, region: str) -> list[dict[str, Any]]:
    created = [_ec2_arn(region, resource) for resource in ("instance/*", "volume/*")]
    # A file may tag these, too.
    others = [
        _ec2_arn(region, resource)
        for resource in ("network-interface/*", "spot-instances-request/*")
    ]
    return [
        _allow(
            "LaunchTaggedInstances", ["ec2:RunInstances"], created,
            {"StringLike": {f"aws:RequestTag/{tags.CLUSTER}": cluster}},
        ),
        _allow(
            "UseResourcesForLaunch", ["ec2:RunInstances"],
            [_ec2_arn(region, resource) for resource in _RUN_INSTANCES_RESOURCES],
        ),
        _allow(
            "TagOnLaunch", ["ec2:CreateTags"], [*created, *others],
            {"StringEquals": {"ec2:CreateAction": "RunInstances"}},
        ),
        _allow(
            "TagNodeStatus", ["ec2:CreateTags"], [_ec2_arn(region, "instance/*")],
            {
                "StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": cluster},
                "ForAllValues:StringEquals": {"aws:TagKeys": [tags.RAY_NODE_STATUS]},
            },
        ),
        _allow(
            "StartStopTerminateInstances", _LIFECYCLE_ACTIONS, [_ec2_arn(region, "instance/*")],
            {"StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": cluster}},
        ),
    ]  # fmt: skip


def _bake_statements(cluster: str, region: str) -> list[dict[str, Any]]:
    created = [_ec2_arn(region, resource) for resource in _IMAGE_RESOURCES]
    return [
        _allow(
            "BakeOwnInstances", ["ec2:CreateImage"],
            [_ec2_arn(region, resource) for resource in ("instance/*", "volume/*")],
            {"StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": cluster}},
        ),
        _allow(
            "CreateTaggedImages", ["ec2:CreateImage"], created,
            {"StringLike": {f"aws:RequestTag/{tags.CLUSTER}": cluster}},
        ),
        _allow(
            "TagOnBake", ["ec2:CreateTags"], created,
            {"StringEquals": {"ec2:CreateAction": "CreateImage"}},
        ),
        _allow("ListSnapshots", ["ec2:DescribeSnapshots"], ["*"]),
        _allow(
            "DeleteOwnImages", ["ec2:DeregisterImage", "ec2:DeleteSnapshot"], created,
            {"StringLike": {f"aws:ResourceTag/{tags.CLUSTER}": cluster}},
        ),
    ]  # fmt: skip


def _allow(
    sid: str, actions: list[str], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resources,
    }
    return {**statement, "Condition": condition} if condition else statement


def _ec2_arn(region: str, resource: str) -> str:
    # The ARNs of images and snapshots have no account.
    account = "" if resource.startswith(("image", "snapshot")) else "*"
    return f"arn:aws:ec2:{region}:{account}:{resource}"
