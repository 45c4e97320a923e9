"""The head's identity in AWS: a role that may launch and end machines of its own cluster.

Names are fixed by cluster and region, and every step may be repeated. The role joins its profile
last, so a profile that has one is complete.
"""

from __future__ import annotations

import json

from shoal.parallel import side_by_side
from shoal.providers.aws import policy, tags
from shoal.providers.aws.calls import Aws

_PATH = "/shoal/"
_POLICY = "controller"
_GONE = ("NoSuchEntity",)
_THERE = ("EntityAlreadyExists", "LimitExceeded")

# What RunInstances says of a profile that was made a moment ago.
NOT_KNOWN_YET = "IAM Instance Profile"


def profile_name(cluster: str, region: str) -> str:
    return tags.name_for(cluster, region)


async def ensure(aws: Aws, cluster: str) -> str:
    """Have the cluster's instance profile, and return its name."""
    name = profile_name(cluster, aws.region)
    found = await aws.call("iam", "get_instance_profile", ignoring=_GONE, InstanceProfileName=name)
    if found and found["InstanceProfile"]["Roles"]:
        return name
    await side_by_side([_have_role(aws, cluster, name), _have_profile(aws, cluster, name)])
    await aws.call(
        "iam",
        "add_role_to_instance_profile",
        ignoring=_THERE,
        InstanceProfileName=name,
        RoleName=name,
    )
    return name


async def _have_role(aws: Aws, cluster: str, name: str) -> None:
    await aws.call(
        "iam",
        "create_role",
        ignoring=_THERE,
        RoleName=name,
        Path=_PATH,
        AssumeRolePolicyDocument=json.dumps(policy.TRUST),
        Description=f"Shoal: the head of cluster {cluster}"[:1000],
        Tags=tags.as_list(tags.ownership(cluster)),
    )
    await aws.call(
        "iam",
        "put_role_policy",
        RoleName=name,
        PolicyName=_POLICY,
        PolicyDocument=json.dumps(policy.for_head(cluster, aws.region)),
    )


async def _have_profile(aws: Aws, cluster: str, name: str) -> None:
    await aws.call(
        "iam",
        "create_instance_profile",
        ignoring=_THERE,
        InstanceProfileName=name,
        Path=_PATH,
        Tags=tags.as_list(tags.ownership(cluster)),
    )


async def everywhere(aws: Aws) -> list[tuple[str, str]]:
    """The cluster and the name of every instance profile of ours, whatever its region."""
    answer = await aws.call("iam", "list_instance_profiles", PathPrefix=_PATH)
    names = [profile["InstanceProfileName"] for profile in answer["InstanceProfiles"]]

    async def owner(name: str) -> str:
        found = await aws.call(
            "iam", "get_instance_profile", ignoring=_GONE, InstanceProfileName=name
        )
        return tags.as_dict(found.get("InstanceProfile", {}).get("Tags")).get(tags.CLUSTER, "")

    return list(zip(await side_by_side(owner(name) for name in names), names, strict=True))


async def remove(aws: Aws, cluster: str) -> list[str]:
    """Take the identity away again, as much of it as there is."""
    name = profile_name(cluster, aws.region)
    profile, role = {"InstanceProfileName": name}, {"RoleName": name}
    await aws.call("iam", "remove_role_from_instance_profile", ignoring=_GONE, **profile, **role)
    had_profile = await aws.call("iam", "delete_instance_profile", ignoring=_GONE, **profile)
    await aws.call("iam", "delete_role_policy", ignoring=_GONE, PolicyName=_POLICY, **role)
    had_role = await aws.call("iam", "delete_role", ignoring=_GONE, **role)
    return [
        *([f"instance profile {name}"] if had_profile else []),
        *([f"role {name}"] if had_role else []),
    ]
