"""Identities in AWS: the head's role may launch and end machines of its own cluster, and that of
its workers, which is only made where the file names buckets, may use those and nothing else.

Names are fixed by cluster and region, and every step may be repeated. The role joins its profile
last, so a profile that has one is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.concurrency import run_all
from shoal.providers.aws import iam_policies, tags
from shoal.providers.aws.client import AwsClient

_PATH = "/shoal/"
_POLICY = "controller"
_BUCKETS = "buckets"
_GONE = ("NoSuchEntity",)
_THERE = ("EntityAlreadyExists", "LimitExceeded")

# What RunInstances says of a profile that was made a moment ago.
NOT_KNOWN_YET = "IAM Instance Profile"


@dataclass(frozen=True)
class Profile:
    """An instance profile that is there, whose it is, and when it was made."""

    name: str
    cluster: str
    made: float


def profile_name(cluster: str, region: str) -> str:
    return tags.name_for(cluster, region)


def workers_name(cluster: str, region: str) -> str:
    return tags.name_for(cluster, region, "workers")


def names(cluster: str, region: str) -> tuple[str, str]:
    """What the two are called."""
    return profile_name(cluster, region), workers_name(cluster, region)


async def ensure(
    aws: AwsClient,
    cluster: str,
    buckets: Mapping[str, bool],
    repositories: Sequence[str] = (),
    *,
    passes: Sequence[str],
) -> str:
    """Have the instance profile of the cluster's head, and return its name. It may use `buckets`,
    give workers the roles that it `passes`, and read images from these repositories, both by
    ARN."""
    own = {_POLICY: iam_policies.for_head(cluster, aws.region, repositories)}
    name = profile_name(cluster, aws.region)
    await _have(aws, cluster, name, f"the head of cluster {cluster}", own)
    await let_use(aws, cluster, buckets, passes=passes)
    return name


async def let_use(
    aws: AwsClient, cluster: str, buckets: Mapping[str, bool], *, passes: Sequence[str]
) -> None:
    """Let a head that is there use these buckets, and give workers the roles that it `passes`.
    Nothing happens to one whose identity is not ours."""
    if buckets or passes:
        document = iam_policies.for_buckets(buckets, passes)
        name = profile_name(cluster, aws.region)
        await _put(aws, name, _BUCKETS, document, ignoring=_GONE)


def workers_role(cluster: str, region: str) -> str:
    """The ARN of the role that `ensure_workers` makes."""
    return iam_policies.role_arn(f"{_PATH.strip('/')}/{workers_name(cluster, region)}")


async def roles_in(aws: AwsClient, profile: Mapping[str, str]) -> list[str]:
    """The ARNs of the roles in an instance profile that a file names. Who may not look gets the
    one that AWS's console makes with a profile."""
    name = profile.get("Name") or profile.get("Arn", "").rpartition("/")[2]
    found = await aws.call(
        "iam",
        "get_instance_profile",
        ignoring=(*_GONE, "AccessDenied"),
        InstanceProfileName=name,
    )
    roles = found.get("InstanceProfile", {}).get("Roles", ())
    return [str(role["Arn"]) for role in roles] or [iam_policies.role_arn(name)]


async def have_spot_role(aws: AwsClient) -> None:
    """Have the role by which AWS itself runs spot machines: an account's first one makes it, and a
    head may not. Who may not either is told so when AWS refuses the machine."""
    await aws.call(
        "iam",
        "create_service_linked_role",
        ignoring=(*_THERE, "InvalidInput", "AccessDenied"),
        AWSServiceName="spot.amazonaws.com",
    )


async def ensure_workers(aws: AwsClient, cluster: str, buckets: Mapping[str, bool]) -> str:
    """Have the instance profile of the cluster's workers, and return its name."""
    name = workers_name(cluster, aws.region)
    await _have(aws, cluster, name, f"workers of cluster {cluster}", {})
    await _put(aws, name, _BUCKETS, iam_policies.for_buckets(buckets))
    return name


async def _have(
    aws: AwsClient, cluster: str, name: str, whose: str, policies: Mapping[str, dict[str, Any]]
) -> None:
    found = await aws.call("iam", "get_instance_profile", ignoring=_GONE, InstanceProfileName=name)
    if found and found["InstanceProfile"]["Roles"]:
        return
    await run_all(
        [_have_role(aws, cluster, name, whose, policies), _have_profile(aws, cluster, name)]
    )
    await aws.call(
        "iam",
        "add_role_to_instance_profile",
        ignoring=_THERE,
        InstanceProfileName=name,
        RoleName=name,
    )


async def _have_role(
    aws: AwsClient, cluster: str, name: str, whose: str, policies: Mapping[str, dict[str, Any]]
) -> None:
    await aws.call(
        "iam",
        "create_role",
        ignoring=_THERE,
        RoleName=name,
        Path=_PATH,
        AssumeRolePolicyDocument=iam_policies.text(iam_policies.TRUST, aws.region),
        Description=f"Shoal: {whose}"[:1000],
        Tags=tags.as_list(tags.ownership(cluster)),
    )
    for title, document in policies.items():
        await _put(aws, name, title, document)


async def _put(
    aws: AwsClient, role: str, title: str, document: dict[str, Any], ignoring: Sequence[str] = ()
) -> None:
    await aws.call(
        "iam",
        "put_role_policy",
        ignoring=ignoring,
        RoleName=role,
        PolicyName=title,
        PolicyDocument=iam_policies.text(document, aws.region),
    )


async def _have_profile(aws: AwsClient, cluster: str, name: str) -> None:
    await aws.call(
        "iam",
        "create_instance_profile",
        ignoring=_THERE,
        InstanceProfileName=name,
        Path=_PATH,
        Tags=tags.as_list(tags.ownership(cluster)),
    )


async def everywhere(aws: AwsClient) -> list[Profile]:
    """Every instance profile of ours, whatever its region."""
    records: list[Mapping[str, Any]] = []
    more: dict[str, str] = {}
    while True:
        page = await aws.call("iam", "list_instance_profiles", PathPrefix=_PATH, **more)
        records += page["InstanceProfiles"]
        if not page.get("IsTruncated"):
            break
        more = {"Marker": page["Marker"]}

    async def read(record: Mapping[str, Any]) -> Profile:
        name = str(record["InstanceProfileName"])
        found = await aws.call(
            "iam", "get_instance_profile", ignoring=_GONE, InstanceProfileName=name
        )
        labels = tags.as_dict(found.get("InstanceProfile", {}).get("Tags"))
        return Profile(name, labels.get(tags.CLUSTER, ""), record["CreateDate"].timestamp())

    return await run_all(map(read, records))


async def remove(aws: AwsClient, cluster: str) -> list[str]:
    """Take the identities away again, as much of them as there is. Asking for what never was
    costs a call; not asking would leave what another file made."""
    policies = (_POLICY, _BUCKETS)
    both = names(cluster, aws.region)
    return [
        gone
        for some in await run_all(_remove(aws, name, policies) for name in both)
        for gone in some
    ]


async def _remove(aws: AwsClient, name: str, policies: Sequence[str]) -> list[str]:
    """The profile goes last: by it the rest is found, should this end half-way."""
    profile, role = {"InstanceProfileName": name}, {"RoleName": name}
    await aws.call("iam", "remove_role_from_instance_profile", ignoring=_GONE, **profile, **role)
    for title in policies:
        await aws.call("iam", "delete_role_policy", ignoring=_GONE, PolicyName=title, **role)
    had_role = await aws.call("iam", "delete_role", ignoring=_GONE, **role)
    had_profile = await aws.call("iam", "delete_instance_profile", ignoring=_GONE, **profile)
    return [
        *([f"role {name}"] if had_role else []),
        *([f"instance profile {name}"] if had_profile else []),
    ]
