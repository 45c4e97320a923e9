"""Creates and deletes the resources that a cluster's instances need: key pair, security groups and
IAM roles.

A resource is created only when the file names none and it is missing. It is tagged with the
cluster, and deleted after the cluster's instances, unless something else uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ProviderError, ShoalError, TransientError
from shoal.core.events import Emit, Warned
from shoal.core.logs import suppress_and_log
from shoal.providers.aws import ebs, ecr, iam_roles, key_pairs, launch_request, security_group
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.launch_config import LaunchConfig, named_groups, uses_internal_ips
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.model import Instance
from shoal.providers.vm.caller_address import source_ranges
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_GROUP_IN_USE = "DependencyViolation"
_DELETE_GROUP_SECONDS = 120.0
_PAUSE_SECONDS = 2.0


async def ensure_resources(
    aws: AwsClient, spec: ClusterSpec, configs: Mapping[str, LaunchConfig]
) -> LaunchResources:
    """Create what is missing for launches with these configurations."""
    key_name: str | None = None
    head_profile: str | None = None
    worker_profile: str | None = None
    groups: dict[str, tuple[str, ...]] = {}
    own_tags = spec.shoal.tags
    boundary = str(spec.provider.settings.get("permissions_boundary") or "")
    role_settings = iam_roles.RoleSettings(own_tags, boundary)

    async def ensure_key_pair() -> None:
        nonlocal key_name
        if any(not config.config.get("KeyName") for config in configs.values()):
            key_name = await key_pairs.ensure_key_pair(aws, spec.cluster_name, spec.auth, own_tags)

    async def ensure_profiles() -> None:
        nonlocal head_profile, worker_profile
        worker_buckets = _worker_buckets(spec)
        head_buckets = _buckets(spec, spec.head_node_type)
        pass_roles = await _roles_to_pass(aws, spec, configs)
        head = configs.get(spec.head_node_type)
        existing_role = head_role(spec)
        if head is None and pass_roles and not existing_role:
            # The head exists already, and may have been created before the file named these.
            await iam_roles.grant_to_head(
                aws, spec.cluster_name, head_buckets, pass_roles=pass_roles
            )
        elif head is not None and existing_role:
            head_profile = existing_role
        elif head is not None and not head.config.get("IamInstanceProfile"):
            head_profile = await iam_roles.ensure_head_profile(
                aws,
                spec.cluster_name,
                head_buckets,
                ecr.repository_arns(spec),
                pass_roles=pass_roles,
                settings=role_settings,
            )
        if head is not None and head_profile is not None:
            keys = await ebs.customer_keys(aws, _node_configs(spec, configs).values())
            await iam_roles.grant_volume_keys(aws, spec.cluster_name, keys)
        # A head that exists may have been created before the file requested images.
        if spec.shoal.bake and not existing_role and (head is None or head_profile is not None):
            await iam_roles.grant_baking(aws, spec.cluster_name)
        if worker_buckets:
            worker_profile = await iam_roles.ensure_worker_profile(
                aws, spec.cluster_name, worker_buckets, role_settings
            )

    async def ensure_spot_role() -> None:
        node_configs = _node_configs(spec, configs).values()
        if any(launch_request.market(config) == "spot" for config in node_configs):
            await iam_roles.ensure_spot_service_role(aws)

    async def ensure_security_groups() -> None:
        without_groups = [
            config
            for config in configs.values()
            if not launch_request.security_group_ids(config.config)
        ]
        vpcs = sorted({subnet.vpc for config in without_groups for subnet in config.subnets})
        settings = spec.provider.settings.get("security_group") or {}
        ssh_from: dict[str, Sequence[str]] = {}
        records: dict[str, Mapping[str, Any]] = {}

        async def ensure_group(vpc: str) -> None:
            records[vpc] = await security_group.ensure_group(
                aws, spec.cluster_name, vpc, settings, own_tags
            )

        async def load_ssh_ranges() -> None:
            ssh_from.update(await _ssh_ranges(aws, spec, vpcs))

        await run_all([load_ssh_ranges(), *(ensure_group(vpc) for vpc in vpcs)])
        peers = [str(record["GroupId"]) for record in records.values()]
        peers += named_groups(_node_configs(spec, configs).values())
        await run_all(
            security_group.ensure_rules(
                aws,
                spec.cluster_name,
                record,
                settings=settings,
                ssh_from=ssh_from[vpc],
                peers=peers,
            )
            for vpc, record in records.items()
        )
        groups.update({vpc: (str(record["GroupId"]),) for vpc, record in records.items()})

    await run_all(
        [ensure_key_pair(), ensure_profiles(), ensure_spot_role(), ensure_security_groups()]
    )
    return LaunchResources(key_name, groups, head_profile, worker_profile)


async def resources_of_head(
    aws: AwsClient, spec: ClusterSpec, head: Mapping[str, Any]
) -> LaunchResources:
    """The resources for workers that the head launches. It may create none, so they use those of
    the cluster, or else its own. `head` is EC2's record of it."""
    groups = {head["VpcId"]: tuple(group["GroupId"] for group in head["SecurityGroups"])}
    created = await security_group.list_groups(aws, spec.cluster_name)
    groups.update({group["VpcId"]: (group["GroupId"],) for group in created})
    return LaunchResources(head.get("KeyName"), groups, None, worker_profile_name(aws, spec))


def _node_configs(
    spec: ClusterSpec, configs: Mapping[str, LaunchConfig]
) -> dict[str, Mapping[str, Any]]:
    """The configuration of every node type, also of those that only the head will launch; merged
    with its template where that is known."""
    plain = {name: node_type.node_config for name, node_type in spec.node_types.items()}
    return {**plain, **{name: config.config for name, config in configs.items()}}


async def _roles_to_pass(
    aws: AwsClient, spec: ClusterSpec, configs: Mapping[str, LaunchConfig]
) -> list[str]:
    """The ARNs of the roles that the head passes to the workers it launches: the one created for
    them, and those in the instance profiles that the file names."""
    profiles = [
        config["IamInstanceProfile"]
        for name, config in sorted(_node_configs(spec, configs).items())
        if spec.node_types[name].max_workers and config.get("IamInstanceProfile")
    ]
    arns = [
        arn
        for roles in await run_all(iam_roles.roles_in_profile(aws, entry) for entry in profiles)
        for arn in roles
    ]
    if _worker_buckets(spec):
        arns.append(iam_roles.worker_role_arn(spec.cluster_name, aws.region))
    return list(dict.fromkeys(arns))


def worker_profile_name(aws: AwsClient, spec: ClusterSpec) -> str | None:
    """The instance profile created for workers; None if they need none."""
    if not _worker_buckets(spec):
        return None
    return iam_roles.worker_profile_name(spec.cluster_name, aws.region)


def creates_profiles(spec: ClusterSpec) -> bool:
    """Whether instance profiles are created for the cluster."""
    has_profile = spec.head.node_config.get("IamInstanceProfile") or head_role(spec)
    return not has_profile or bool(_worker_buckets(spec))


def head_role(spec: ClusterSpec) -> str:
    """The existing instance profile, by name or ARN, that the file gives its head; empty if one is
    created. A role that the AWS console creates has an instance profile of the same name."""
    return str(spec.provider.settings.get("head_role") or "")


def _worker_buckets(spec: ClusterSpec) -> dict[str, bool]:
    """The buckets that workers mount, by name, and whether all of them mount it read-only."""
    buckets: dict[str, bool] = {}
    for name, node_type in spec.node_types.items():
        if node_type.max_workers:
            for bucket, read_only in _buckets(spec, name).items():
                buckets[bucket] = read_only and buckets.get(bucket, True)
    return buckets


def _buckets(spec: ClusterSpec, node_type: str) -> dict[str, bool]:
    return {m.s3: m.read_only for m in spec.mounts_for(node_type).values() if m.s3}


async def _ssh_ranges(
    aws: AwsClient, spec: ClusterSpec, vpcs: Sequence[str]
) -> dict[str, Sequence[str]]:
    """The ranges from which SSH is allowed, by VPC: those of the file, else this machine's. SSH to
    private addresses comes from the VPC or a VPN, and through a proxy command from the proxy, which
    is usually in the VPC."""
    settings = spec.provider.settings.get("security_group") or {}
    if not vpcs or spec.shoal.ssh_from or security_group.has_ssh_rules(settings):
        return dict.fromkeys(vpcs, spec.shoal.ssh_from)
    if spec.auth.ssh_proxy_command or uses_internal_ips(spec):
        ranges = await run_all(security_group.vpc_ranges(aws, vpc) for vpc in vpcs)
        if not spec.auth.ssh_proxy_command:
            ranges = [[*r, *source_ranges(r)] for r in ranges]
        return dict(zip(vpcs, ranges, strict=True))
    return dict.fromkeys(vpcs, await security_group.caller_ranges(aws))


async def delete_unused(
    aws: AwsClient,
    cluster: str,
    list_instances: Callable[[], Awaitable[Sequence[Instance]]],
    emit: Emit,
) -> None:
    """Delete what was created for a cluster that could not be launched. Instances that another
    command launches meanwhile, and their resources, are kept."""

    async def refuse() -> bool:
        raise TransientError("the cluster has instances", why="its security group is in use")

    with suppress_and_log(_log, f"delete the resources of {cluster}", ShoalError):
        if not await list_instances():
            await delete_resources(aws, cluster, refuse, emit, expect_profiles=False)


async def delete_resources(
    aws: AwsClient,
    cluster: str,
    terminate_instances: Callable[[], Awaitable[bool]],
    emit: Emit,
    *,
    expect_profiles: bool = True,
) -> list[str]:
    """Delete what `ensure_resources` created, and return what was deleted. `terminate_instances`
    terminates instances that a listing has shown since, and returns whether there were any. A
    caller without IAM permissions is warned if the cluster may have instance profiles
    (`expect_profiles`).

    The security groups go first: EC2 refuses to delete a group that an instance uses, also an
    instance that no listing shows yet. So once they are gone, so are all instances.
    """
    deleted: list[str] = []
    groups = await security_group.list_groups(aws, cluster)
    ids = {str(group["GroupId"]) for group in groups}
    await run_all(
        security_group.revoke_references(aws, group, ids - {str(group["GroupId"])})
        for group in groups
    )
    for group in groups:
        if await _delete_group(aws, str(group["GroupId"]), terminate_instances):
            deleted.append(f"security group {group['GroupName']}")
        else:
            emit(
                Warned(
                    f"could not delete security group {group['GroupName']}",
                    why="a resource outside the cluster still uses it",
                    fix=f"aws ec2 delete-security-group --group-id {group['GroupId']}, later",
                )
            )

    async def delete_profiles() -> list[str]:
        try:
            return await iam_roles.delete_profiles(aws, cluster)
        except DeniedError as error:
            if expect_profiles:
                name = iam_roles.head_profile_name(cluster, aws.region)
                what = f"the role and instance profile {name} may still exist"
                emit(Warned(what, error.why, "with IAM permissions: shoal gc"))
            return []

    for names in await run_all([key_pairs.delete_key_pairs(aws, cluster), delete_profiles()]):
        deleted += names
    for name in deleted:
        _log.info("deleted %s", name)
    return deleted


async def _delete_group(
    aws: AwsClient, group: str, terminate_instances: Callable[[], Awaitable[bool]]
) -> bool:
    deadline = aws.clock.monotonic() + _DELETE_GROUP_SECONDS
    while True:
        try:
            await aws.call(
                "ec2",
                "delete_security_group",
                ignore_codes=("InvalidGroup.NotFound",),
                GroupId=group,
            )
            return True
        except ProviderError as error:
            if _GROUP_IN_USE not in error.why:
                raise
        if not await terminate_instances():
            if aws.clock.monotonic() > deadline:
                return False
            await aws.clock.sleep(_PAUSE_SECONDS)
