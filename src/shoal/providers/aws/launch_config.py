"""What machines stand on and AWS does not bring: a key pair, security groups, an identity.

Each is made only when the file names none and it is missing, tagged as the cluster's, and taken
away when the cluster is gone and nobody else uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ProviderError
from shoal.core.events import Emit, Warned
from shoal.providers.aws import (
    amis,
    ebs,
    ecr,
    iam_roles,
    instance_types,
    key_pairs,
    launch_request,
    network,
)
from shoal.providers.aws.client import AwsClient
from shoal.providers.aws.launch_options import Subnet
from shoal.providers.aws.launch_request import LaunchResources
from shoal.spec.cluster_spec import ClusterSpec

_IN_USE = "DependencyViolation"
_RELEASE_SECONDS = 120.0
_PAUSE_SECONDS = 2.0


@dataclass(frozen=True)
class LaunchConfig:
    """One kind of machine, ready to be asked for: its configuration with its template, the
    subnets it may be in, and the image for each instance type it may have."""

    config: Mapping[str, Any]
    instance_types: Sequence[str]
    subnets: Sequence[Subnet]
    images: Mapping[str, str]


async def merged_node_configs(
    aws: AwsClient, spec: ClusterSpec, node_types: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The `node_config` of each kind, with the launch template that it may name, and with the new
    volumes of the file."""
    configs = {name: dict(spec.node_types[name].node_config) for name in node_types}
    templates = [name for name, config in configs.items() if "LaunchTemplate" in config]
    for name, data in zip(
        templates, await run_all(_template(aws, configs[n]) for n in templates), strict=True
    ):
        configs[name] = launch_request.with_template(configs[name], data)
    for name, config in configs.items():
        if new := ebs.mappings(spec.volumes_for(name).values()):
            config["BlockDeviceMappings"] = [*(config.get("BlockDeviceMappings") or ()), *new]
    return configs


async def resolve_launch_configs(
    aws: AwsClient, spec: ClusterSpec, node_types: Sequence[str]
) -> dict[str, LaunchConfig]:
    """Find out, without changing anything, where and from what these kinds can be launched."""
    configs = await merged_node_configs(aws, spec, node_types)
    kinds: dict[str, instance_types.MachineType] = {}
    known: list[dict[str, Any]] = []
    defaults: amis.Defaults | None = None

    async def learn_types() -> None:
        kinds.update(await machines(aws, spec, configs))

    async def learn_subnets() -> None:
        known.extend(await network.subnets(aws))

    async def learn_images() -> None:
        nonlocal defaults
        if not all(amis.is_named(config.get("ImageId")) for config in configs.values()):
            defaults = await amis.Defaults.look_up(aws)

    await run_all([learn_types(), learn_subnets(), learn_images()])
    return {
        name: LaunchConfig(
            config=config,
            instance_types=choices,
            subnets=subnets_for(spec, config, known),
            images={
                kind: _image(config, instance_types.pick(aws, kinds, kind), defaults, in_container)
                for kind in choices
            },
        )
        for name, config in configs.items()
        for in_container in [_in_container(spec, name)]
        for wanted in [_choices(spec, name, config)]
        # What the region does not have is no choice, as long as there is another.
        for choices in [[kind for kind in wanted if kind in kinds] or wanted]
    }


def _in_container(spec: ClusterSpec, node_type: str) -> bool:
    """Whether a node of this type, whatever its role, lives in one."""
    workers = spec.node_types[node_type].setup.container
    heads = spec.head_setup.container if node_type == spec.head_node_type else None
    return bool(workers or heads)


async def machines(
    aws: AwsClient, spec: ClusterSpec, configs: Mapping[str, Mapping[str, Any]]
) -> dict[str, instance_types.MachineType]:
    """Every instance type that any node type of the file may have, as AWS describes it. Always all
    of them, so that whoever asks asks the same; `configs` are those that are known as a whole."""
    whole = {name: node_type.node_config for name, node_type in spec.node_types.items()}
    wanted = {
        kind
        for name, config in {**whole, **configs}.items()
        for kind in _choices(spec, name, config)
    }
    return await instance_types.describe(aws, wanted)


def _choices(spec: ClusterSpec, node_type: str, config: Mapping[str, Any]) -> list[str]:
    """The instance types that a node type may have, the one that was wished for first."""
    alternatives = spec.shoal.fallback.get(node_type, ())
    return list(dict.fromkeys([launch_request.instance_type(config), *alternatives]))


def _image(
    config: Mapping[str, Any],
    machine: instance_types.MachineType,
    defaults: amis.Defaults | None,
    in_container: bool,
) -> str:
    parameter = amis.parameter_for(config.get("ImageId"), machine, in_container=in_container)
    if parameter is None or defaults is None:
        return str(config["ImageId"])
    return defaults.image(parameter)


async def prepare(
    aws: AwsClient, spec: ClusterSpec, sites: Mapping[str, LaunchConfig]
) -> LaunchResources:
    """Make what is missing."""
    key_name: str | None = None
    profile: str | None = None
    of_workers: str | None = None
    groups: dict[str, tuple[str, ...]] = {}

    async def key() -> None:
        nonlocal key_name
        if any(not site.config.get("KeyName") for site in sites.values()):
            key_name = await key_pairs.ensure(aws, spec.cluster_name, spec.auth)

    async def identities() -> None:
        nonlocal profile, of_workers
        used = _buckets_of_workers(spec)
        own = _buckets(spec, spec.head_node_type)
        passes = await _passed(aws, spec, sites)
        head = sites.get(spec.head_node_type)
        if head is None and passes:
            # The head is there already: when it was made, the file may have said nothing of these.
            await iam_roles.let_use(aws, spec.cluster_name, own, passes=passes)
        elif head is not None and not head.config.get("IamInstanceProfile"):
            images_from = ecr.repositories(spec)
            profile = await iam_roles.ensure(
                aws, spec.cluster_name, own, images_from, passes=passes
            )
        if used:
            of_workers = await iam_roles.ensure_workers(aws, spec.cluster_name, used)

    async def spot() -> None:
        configs = _configs(spec, sites).values()
        if any(launch_request.market(config) == "spot" for config in configs):
            await iam_roles.have_spot_role(aws)

    async def guards() -> None:
        open_sites = [site for site in sites.values() if not launch_request.own_groups(site.config)]
        vpcs = sorted({subnet.vpc for site in open_sites for subnet in site.subnets})
        settings = spec.provider.settings.get("security_group") or {}
        ssh_from: dict[str, Sequence[str]] = {}
        made: dict[str, Mapping[str, Any]] = {}

        async def have(vpc: str) -> None:
            made[vpc] = await network.have_group(aws, spec.cluster_name, vpc, settings)

        async def learn_ranges() -> None:
            ssh_from.update(await _ssh_ranges(aws, spec, vpcs))

        await run_all([learn_ranges(), *(have(vpc) for vpc in vpcs)])
        await run_all(
            network.open_group(
                aws, spec.cluster_name, group, settings=settings, ssh_from=ssh_from[vpc]
            )
            for vpc, group in made.items()
        )
        groups.update({vpc: (str(group["GroupId"]),) for vpc, group in made.items()})

    await run_all([key(), identities(), spot(), guards()])
    return LaunchResources(key_name, groups, profile, of_workers)


def _configs(spec: ClusterSpec, sites: Mapping[str, LaunchConfig]) -> dict[str, Mapping[str, Any]]:
    """The configuration of every kind, also of those that only a head will ask for; as a whole,
    where it is known."""
    known = {name: site.config for name, site in sites.items()}
    return {**{name: kind.node_config for name, kind in spec.node_types.items()}, **known}


async def _passed(
    aws: AwsClient, spec: ClusterSpec, sites: Mapping[str, LaunchConfig]
) -> list[str]:
    """The roles that a head gives the workers it launches, by ARN: the one that is made for them,
    and those in the profiles that the file names."""
    named = [
        config["IamInstanceProfile"]
        for name, config in sorted(_configs(spec, sites).items())
        if spec.node_types[name].max_workers and config.get("IamInstanceProfile")
    ]
    found = [
        role
        for roles in await run_all(iam_roles.roles_in(aws, profile) for profile in named)
        for role in roles
    ]
    if _buckets_of_workers(spec):
        found.append(iam_roles.workers_role(spec.cluster_name, aws.region))
    return list(dict.fromkeys(found))


def workers_profile(aws: AwsClient, spec: ClusterSpec) -> str | None:
    """The identity that workers have, if they have one."""
    used = _buckets_of_workers(spec)
    return iam_roles.workers_name(spec.cluster_name, aws.region) if used else None


def _buckets_of_workers(spec: ClusterSpec) -> dict[str, bool]:
    """The buckets that workers may use, and whether they may only read them."""
    found: dict[str, bool] = {}
    for name, kind in spec.node_types.items():
        if kind.max_workers:
            for bucket, read_only in _buckets(spec, name).items():
                found[bucket] = read_only and found.get(bucket, True)
    return found


def _buckets(spec: ClusterSpec, node_type: str) -> dict[str, bool]:
    return {m.s3: m.read_only for m in spec.mounts_for(node_type).values() if m.s3}


async def _ssh_ranges(
    aws: AwsClient, spec: ClusterSpec, vpcs: Sequence[str]
) -> dict[str, Sequence[str]]:
    """From where SSH is let in, for each network: as the file says, else from where we are."""
    if not vpcs:
        return {}
    if _is_inside(spec) and not spec.shoal.ssh_from:
        inside = await run_all(network.vpc_ranges(aws, vpc) for vpc in vpcs)
        return dict(zip(vpcs, inside, strict=True))
    return dict.fromkeys(vpcs, spec.shoal.ssh_from or await network.caller_ranges(aws))


def makes_identities(spec: ClusterSpec) -> bool:
    """Whether the file has identities made for its machines."""
    own = spec.head.node_config.get("IamInstanceProfile")
    return not own or bool(_buckets_of_workers(spec))


async def release(
    aws: AwsClient,
    cluster: str,
    end_machines: Callable[[], Awaitable[bool]],
    emit: Emit,
    *,
    had_identities: bool = True,
) -> list[str]:
    """Take away what `prepare` made, and tell what that was. `end_machines` ends those that have
    come to light since, and tells whether there were any. Who may not use IAM is told what may be
    left, unless the cluster never `had_identities`.

    The groups go first: AWS deletes none that a machine still uses, and knows that better than
    any listing. So once they are gone, no machine of the cluster is left anywhere.
    """
    removed: list[str] = []
    for group in await network.groups_of(aws, cluster):
        if await _remove_group(aws, str(group["GroupId"]), end_machines):
            removed.append(f"security group {group['GroupName']}")
        else:
            emit(
                Warned(
                    f"the security group {group['GroupName']} stays",
                    why="something that is not the cluster's uses it",
                    fix=f"aws ec2 delete-security-group --group-id {group['GroupId']}, later",
                )
            )

    async def identities() -> list[str]:
        try:
            return await iam_roles.remove(aws, cluster)
        except DeniedError as error:
            if had_identities:
                name = iam_roles.profile_name(cluster, aws.region)
                what = f"the role and the instance profile {name} may be left"
                emit(Warned(what, error.why, "shoal gc, by somebody who may use IAM"))
            return []

    for gone in await run_all([key_pairs.remove(aws, cluster), identities()]):
        removed += gone
    return removed


async def _remove_group(
    aws: AwsClient, group: str, end_machines: Callable[[], Awaitable[bool]]
) -> bool:
    deadline = aws.clock.monotonic() + _RELEASE_SECONDS
    while True:
        try:
            await aws.call(
                "ec2", "delete_security_group", ignoring=("InvalidGroup.NotFound",), GroupId=group
            )
            return True
        except ProviderError as error:
            if _IN_USE not in error.why:
                raise
        if not await end_machines():
            if aws.clock.monotonic() > deadline:
                return False
            await aws.clock.sleep(_PAUSE_SECONDS)


async def _template(aws: AwsClient, config: Mapping[str, Any]) -> dict[str, Any]:
    named = dict(config["LaunchTemplate"])
    version = str(named.pop("Version", "$Default"))

    async def ask() -> dict[str, Any]:
        operation = "describe_launch_template_versions"
        return await aws.call("ec2", operation, Versions=[version], **named)

    answer = await aws.once(f"template {sorted(named.items())} {version}", ask)
    data: dict[str, Any] = answer["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return data


def subnets_for(
    spec: ClusterSpec, config: Mapping[str, Any], known: Sequence[Mapping[str, Any]]
) -> list[Subnet]:
    zones = spec.provider.settings.get("availability_zone") or ()
    if isinstance(zones, str):
        zones = [zone.strip() for zone in zones.split(",")]
    if zone := launch_request.own_zone(config):
        zones = [zone]
    return network.choose_subnets(
        known, named=launch_request.own_subnets(config), zones=zones, public=not _is_inside(spec)
    )


def _is_inside(spec: ClusterSpec) -> bool:
    """Whether we are in the same network as the machines, and use their private addresses."""
    return bool(spec.provider.settings.get("use_internal_ips"))
