"""IAM roles and instance profiles. The head's role may launch and terminate instances of its own
cluster; the workers' role, created only when the file mounts buckets, may use these buckets.

Names are fixed by cluster and region, and every step may be repeated. The role is added to its
profile last, so a profile with a role is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError
from shoal.providers.aws import iam_policies, tags
from shoal.providers.aws.aws_client import AwsClient

_log = logging.getLogger(__name__)

_PATH = "/shoal/"
_CONTROLLER_POLICY = "controller"
_BUCKETS_POLICY = "buckets"
_KEYS_POLICY = "volume-keys"
_BAKE_POLICY = "images"
_NOT_FOUND = ("NoSuchEntity",)
# A caller with the permissions that an earlier version printed may not list policies.
_NOT_LISTED = (*_NOT_FOUND, "AccessDenied")
_EXISTS = ("EntityAlreadyExists", "LimitExceeded")

_WITHOUT_IAM = (
    "or if the account requires a permissions boundary, provider: {permissions_boundary: ARN}\n"
    "or use an existing role, provider: {head_role: NAME}"
)

# Part of the RunInstances error for an instance profile that was created a moment ago.
NOT_PROPAGATED = "IAM Instance Profile"


@dataclass(frozen=True)
class Profile:
    """An existing instance profile, the cluster it belongs to, and when it was created."""

    name: str
    cluster: str
    created_at: float


@dataclass(frozen=True)
class RoleSettings:
    """What the file says about the roles that are created: its own tags, and the ARN of the
    permissions boundary that limits what they may do, if the account requires one."""

    own_tags: Mapping[str, str] = field(default_factory=dict)
    boundary: str = ""


def head_profile_name(cluster: str, region: str) -> str:
    return tags.resource_name(cluster, region)


def worker_profile_name(cluster: str, region: str) -> str:
    return tags.resource_name(cluster, region, "workers")


def profile_names(cluster: str, region: str) -> tuple[str, str]:
    """The names of the head's and the workers' instance profile, and of their roles."""
    return head_profile_name(cluster, region), worker_profile_name(cluster, region)


async def ensure_head_profile(
    aws: AwsClient,
    cluster: str,
    buckets: Mapping[str, bool],
    repositories: Sequence[str] = (),
    *,
    pass_roles: Sequence[str],
    settings: RoleSettings,
) -> str:
    """Create the head's instance profile if it is missing, and return its name. It may use
    `buckets`, pass the roles `pass_roles` to workers, and read images from `repositories`; both
    are ARNs."""
    policies = {_CONTROLLER_POLICY: iam_policies.head_policy(cluster, aws.region, repositories)}
    name = head_profile_name(cluster, aws.region)
    owner = f"the head of cluster {cluster}"
    await _ensure_profile_with_role(aws, cluster, name, owner, policies, settings)
    await grant_to_head(aws, cluster, buckets, pass_roles=pass_roles)
    return name


async def grant_to_head(
    aws: AwsClient, cluster: str, buckets: Mapping[str, bool], *, pass_roles: Sequence[str]
) -> None:
    """Allow an existing head to use these buckets and to pass these roles. Does nothing for a head
    whose role Shoal did not create."""
    if buckets or pass_roles:
        document = iam_policies.bucket_policy(buckets, pass_roles)
        name = head_profile_name(cluster, aws.region)
        await _put_policy(aws, name, _BUCKETS_POLICY, document, ignore_codes=_NOT_FOUND)


async def grant_baking(aws: AwsClient, cluster: str) -> None:
    """Allow a head to make images of its cluster's instances. Does nothing for a head whose role
    Shoal did not create, or for a caller without IAM permissions: the cluster works without."""
    name = head_profile_name(cluster, aws.region)
    document = iam_policies.bake_policy(cluster, aws.region)
    ignored = (*_NOT_FOUND, "AccessDenied")
    await _put_policy(aws, name, _BAKE_POLICY, document, ignore_codes=ignored)


async def grant_volume_keys(aws: AwsClient, cluster: str, keys: Sequence[str]) -> None:
    """Allow a head to launch instances with volumes that these KMS keys encrypt. Does nothing for
    a head whose role Shoal did not create."""
    if keys:
        name = head_profile_name(cluster, aws.region)
        document = iam_policies.volume_key_policy(keys)
        await _put_policy(aws, name, _KEYS_POLICY, document, ignore_codes=_NOT_FOUND)


def worker_role_arn(cluster: str, region: str) -> str:
    """The ARN of the role that `ensure_worker_profile` creates."""
    return iam_policies.role_arn(f"{_PATH.strip('/')}/{worker_profile_name(cluster, region)}")


def profile_name(config: Mapping[str, Any]) -> str:
    """The name of the instance profile in a `node_config`; empty if there is none."""
    profile = config.get("IamInstanceProfile") or {}
    return str(profile.get("Name") or name_of(profile.get("Arn", "")))


def name_of(profile: str) -> str:
    """The name of an instance profile, from its name or ARN."""
    return profile.rpartition("/")[2]


async def profile_exists(aws: AwsClient, name: str) -> bool:
    """Whether IAM has an instance profile of this name."""
    return bool(
        await aws.call(
            "iam", "get_instance_profile", ignore_codes=_NOT_FOUND, InstanceProfileName=name
        )
    )


async def roles_in_profile(aws: AwsClient, profile: Mapping[str, str]) -> list[str]:
    """The ARNs of the roles in an instance profile that a file names. For a caller who may not
    read the profile, the role of the same name, as the AWS console creates it."""
    name = profile_name({"IamInstanceProfile": profile})
    response = await aws.call(
        "iam",
        "get_instance_profile",
        ignore_codes=(*_NOT_FOUND, "AccessDenied"),
        InstanceProfileName=name,
    )
    roles = response.get("InstanceProfile", {}).get("Roles", ())
    return [str(role["Arn"]) for role in roles] or [iam_policies.role_arn(name)]


async def ensure_spot_service_role(aws: AwsClient) -> None:
    """Create the service-linked role that EC2 needs for the first spot instance of an account; a
    head may not create it. A caller who may not either gets an error from RunInstances."""
    await aws.call(
        "iam",
        "create_service_linked_role",
        ignore_codes=(*_EXISTS, "InvalidInput", "AccessDenied"),
        AWSServiceName="spot.amazonaws.com",
    )


async def ensure_worker_profile(
    aws: AwsClient, cluster: str, buckets: Mapping[str, bool], settings: RoleSettings
) -> str:
    """Create the workers' instance profile if it is missing, and return its name."""
    name = worker_profile_name(cluster, aws.region)
    owner = f"workers of cluster {cluster}"
    await _ensure_profile_with_role(aws, cluster, name, owner, {}, settings)
    await _put_policy(aws, name, _BUCKETS_POLICY, iam_policies.bucket_policy(buckets))
    return name


async def _ensure_profile_with_role(
    aws: AwsClient,
    cluster: str,
    name: str,
    owner: str,
    policies: Mapping[str, dict[str, Any]],
    settings: RoleSettings,
) -> None:
    response = await aws.call(
        "iam", "get_instance_profile", ignore_codes=_NOT_FOUND, InstanceProfileName=name
    )
    if response and response["InstanceProfile"]["Roles"]:
        return
    labels = tags.cluster_tags(cluster, settings.own_tags)
    await run_all(
        [
            _create_role(aws, name, owner, policies, labels, settings.boundary),
            _create_profile(aws, name, labels),
        ]
    )
    await aws.call(
        "iam",
        "add_role_to_instance_profile",
        ignore_codes=_EXISTS,
        InstanceProfileName=name,
        RoleName=name,
    )
    _log.info("created role and instance profile %s", name)


async def _create_role(
    aws: AwsClient,
    name: str,
    owner: str,
    policies: Mapping[str, dict[str, Any]],
    labels: Mapping[str, str],
    boundary: str,
) -> None:
    try:
        await aws.call(
            "iam",
            "create_role",
            ignore_codes=_EXISTS,
            RoleName=name,
            Path=_PATH,
            AssumeRolePolicyDocument=iam_policies.to_json(
                iam_policies.EC2_TRUST_POLICY, aws.region
            ),
            Description=f"Shoal: {owner}"[:1000],
            Tags=tags.as_list(labels),
            **({"PermissionsBoundary": boundary} if boundary else {}),
        )
    except DeniedError as error:
        raise DeniedError(error.what, why=error.why, fix=f"{error.fix}\n{_WITHOUT_IAM}") from None
    for policy, document in policies.items():
        await _put_policy(aws, name, policy, document)


async def _put_policy(
    aws: AwsClient,
    role: str,
    policy: str,
    document: dict[str, Any],
    ignore_codes: Sequence[str] = (),
) -> None:
    await aws.call(
        "iam",
        "put_role_policy",
        ignore_codes=ignore_codes,
        RoleName=role,
        PolicyName=policy,
        PolicyDocument=iam_policies.to_json(document, aws.region),
    )


async def _create_profile(aws: AwsClient, name: str, labels: Mapping[str, str]) -> None:
    await aws.call(
        "iam",
        "create_instance_profile",
        ignore_codes=_EXISTS,
        InstanceProfileName=name,
        Path=_PATH,
        Tags=tags.as_list(labels),
    )


async def list_profiles(aws: AwsClient) -> list[Profile]:
    """Every instance profile that Shoal created, for all regions."""
    records = await aws.paginate(
        "iam", "list_instance_profiles", "InstanceProfiles", PathPrefix=_PATH
    )

    async def read(record: Mapping[str, Any]) -> Profile:
        name = str(record["InstanceProfileName"])
        response = await aws.call(
            "iam", "get_instance_profile", ignore_codes=_NOT_FOUND, InstanceProfileName=name
        )
        labels = tags.as_dict(response.get("InstanceProfile", {}).get("Tags"))
        return Profile(name, labels.get(tags.CLUSTER, ""), record["CreateDate"].timestamp())

    return await run_all(map(read, records))


async def delete_profiles(aws: AwsClient, cluster: str) -> list[str]:
    """Delete the roles and instance profiles of a cluster, as far as they exist, and return their
    names. Both names are tried, since an earlier version of the file may have needed either."""
    names = profile_names(cluster, aws.region)
    deleted = await run_all(_delete_profile(aws, name) for name in names)
    return [name for names in deleted for name in names]


async def _delete_profile(aws: AwsClient, name: str) -> list[str]:
    """The profile goes last: the rest is found by it if this is interrupted."""
    profile, role = {"InstanceProfileName": name}, {"RoleName": name}
    await aws.call(
        "iam", "remove_role_from_instance_profile", ignore_codes=_NOT_FOUND, **profile, **role
    )
    # IAM refuses to delete a role with policies, and users add their own: for a bucket, or for
    # Session Manager.
    await run_all([_delete_inline_policies(aws, name), _detach_policies(aws, name)])
    had_role = await aws.call("iam", "delete_role", ignore_codes=_NOT_FOUND, **role)
    had_profile = await aws.call(
        "iam", "delete_instance_profile", ignore_codes=_NOT_FOUND, **profile
    )
    return [
        *([f"role {name}"] if had_role else []),
        *([f"instance profile {name}"] if had_profile else []),
    ]


async def _delete_inline_policies(aws: AwsClient, role: str) -> None:
    response = await aws.call(
        "iam", "list_role_policies", ignore_codes=_NOT_LISTED, RoleName=role, MaxItems=1000
    )
    own = [_CONTROLLER_POLICY, _BUCKETS_POLICY, _KEYS_POLICY, _BAKE_POLICY]
    for policy in dict.fromkeys([*own, *response.get("PolicyNames", ())]):
        await aws.call(
            "iam", "delete_role_policy", ignore_codes=_NOT_FOUND, RoleName=role, PolicyName=policy
        )


async def _detach_policies(aws: AwsClient, role: str) -> None:
    response = await aws.call(
        "iam", "list_attached_role_policies", ignore_codes=_NOT_LISTED, RoleName=role, MaxItems=1000
    )
    for policy in response.get("AttachedPolicies", ()):
        await aws.call(
            "iam",
            "detach_role_policy",
            ignore_codes=_NOT_FOUND,
            RoleName=role,
            PolicyArn=policy["PolicyArn"],
        )
        _log.info("detached %s from role %s", policy["PolicyArn"], role)
