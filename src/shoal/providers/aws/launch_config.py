"""Resolves what a node type is launched with: its merged configuration, its subnets, and an AMI
for each instance type it may use. Creates nothing; see `resources` for that."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError, ShoalError
from shoal.core.logs import suppress_and_log
from shoal.providers.aws import (
    amis,
    ebs,
    instance_types,
    launch_request,
    security_group,
    subnets,
)
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.instance_types import InstanceTypeInfo
from shoal.providers.aws.preflight import node_config_shapes
from shoal.providers.aws.pricing import PUBLIC_ADDRESS_PER_HOUR, Prices
from shoal.providers.vm.launch_options import Subnet
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchConfig:
    """A node type, ready to launch: its configuration merged with its launch template, the subnets
    it may be launched in, the AMI for each instance type it may use, and for each AMI the root
    volume that the file does not configure. `orders_zones` is true if the file itself says in which
    order to try the zones. `baked` are the AMIs to launch from instead, by those that they were
    made from, and `image_keys` what identifies them."""

    config: Mapping[str, Any]
    instance_types: Sequence[str]
    subnets: Sequence[Subnet]
    images: Mapping[str, str]
    root_volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    orders_zones: bool = False
    baked: Mapping[str, str] = field(default_factory=dict)
    image_keys: Mapping[str, str] = field(default_factory=dict)

    def images_for(self, instance_type: str) -> list[str]:
        """The AMIs to try for this instance type: a baked one may have been deleted meanwhile."""
        base = self.images[instance_type]
        return [self.baked[base], base] if base in self.baked else [base]

    @property
    def mappings(self) -> list[Mapping[str, Any]]:
        """The block device mappings of an instance of the preferred type."""
        own = list(self.config.get("BlockDeviceMappings") or ())
        root = self.root_volumes.get(self.images[self.instance_types[0]])
        return own if root is None else [root, *own]


async def merged_node_configs(
    aws: AwsClient, spec: ClusterSpec, node_types: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The `node_config` of each node type, merged with the launch template it may name and with
    the new volumes of the file. An AMI that an SSM parameter names is looked up."""
    for name in node_types:
        node_config_shapes.refuse_invalid(name, spec.node_types[name].node_config)
    configs = {
        name: {k: v for k, v in spec.node_types[name].node_config.items() if v is not None}
        for name in node_types
    }
    with_template = [name for name, config in configs.items() if "LaunchTemplate" in config]
    templates = await run_all(_launch_template(aws, configs[name]) for name in with_template)
    for name, template in zip(with_template, templates, strict=True):
        configs[name] = launch_request.merge_template(configs[name], template)
    for name, config in configs.items():
        if new_volumes := ebs.block_device_mappings(spec.volumes_for(name).values()):
            mappings = config.get("BlockDeviceMappings") or ()
            config["BlockDeviceMappings"] = [*mappings, *new_volumes]

    async def resolve_image(config: dict[str, Any]) -> None:
        image = config.get("ImageId")
        if isinstance(image, str) and image.startswith(amis.RESOLVE_SSM):
            config["ImageId"] = await amis.resolve_ssm(aws, image)

    await run_all(map(resolve_image, configs.values()))
    await run_all(_resolve_group_names(aws, config) for config in configs.values())
    return configs


async def _resolve_group_names(aws: AwsClient, config: dict[str, Any]) -> None:
    """Replace `SecurityGroups`, which are names, by ids: EC2 does not accept names together with a
    subnet."""
    names = config.pop("SecurityGroups", None)
    if not names:
        return
    records = await subnets.list_subnets(aws)
    vpc = subnets.vpc_of(records, launch_request.subnet_ids(config))
    ids = await security_group.ids_by_name(aws, names, vpc)
    config["SecurityGroupIds"] = [*(config.get("SecurityGroupIds") or ()), *ids]


async def _launch_template(aws: AwsClient, config: Mapping[str, Any]) -> dict[str, Any]:
    template = dict(config["LaunchTemplate"])
    version = str(template.pop("Version", "$Default"))

    async def load() -> dict[str, Any]:
        operation = "describe_launch_template_versions"
        return await aws.call("ec2", operation, Versions=[version], **template)

    response = await aws.cached(f"launch template {sorted(template.items())} {version}", load)
    data: dict[str, Any] = response["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return data


async def resolve_launch_configs(
    aws: AwsClient, spec: ClusterSpec, node_types: Sequence[str]
) -> dict[str, LaunchConfig]:
    """The launch configurations of these node types, by name."""
    configs = await merged_node_configs(aws, spec, node_types)
    type_infos: dict[str, InstanceTypeInfo] = {}
    subnet_records: list[dict[str, Any]] = []
    group_vpcs: dict[str, str] = {}
    default_amis: amis.DefaultAmis | None = None

    async def load_types() -> None:
        type_infos.update(await instance_types.describe_candidates(aws, spec, configs))

    async def load_subnets() -> None:
        subnet_records.extend(await subnets.list_subnets(aws))

    async def load_groups() -> None:
        group_vpcs.update(await security_group.vpcs_of_groups(aws, named_groups(configs.values())))

    async def load_amis() -> None:
        nonlocal default_amis
        if not all(amis.is_explicit(config.get("ImageId")) for config in configs.values()):
            default_amis = await amis.DefaultAmis.look_up(aws)

    await run_all([load_types(), load_subnets(), load_groups(), load_amis()])

    def resolve(name: str, config: Mapping[str, Any]) -> LaunchConfig:
        candidates = instance_types.candidates(spec, name, config)
        # Types that the region does not have are skipped, as long as it has one of them.
        available = [t for t in candidates if t in type_infos] or candidates
        in_container = _is_in_container(spec, name)
        return LaunchConfig(
            config=config,
            instance_types=available,
            subnets=subnets_for(spec, config, subnet_records, group_vpcs),
            images={
                instance_type: _ami(
                    config,
                    instance_types.require(aws, type_infos, instance_type),
                    default_amis,
                    in_container,
                )
                for instance_type in available
            },
            orders_zones=bool(launch_request.subnet_ids(config) or _zones(spec, config)),
        )

    return await _with_root_volumes(
        aws, {name: resolve(name, config) for name, config in configs.items()}
    )


async def _with_root_volumes(
    aws: AwsClient, configs: Mapping[str, LaunchConfig]
) -> dict[str, LaunchConfig]:
    """The same configurations with the root volumes that their files do not configure."""
    images: dict[str, dict[str, Any]] = {}
    # A head of an earlier version may not read them: then the AMIs decide.
    with suppress_and_log(_log, "read the AMIs", DeniedError):
        ids = {id for config in configs.values() for id in config.images.values()}
        images = await amis.describe(aws, ids)

    def root_volumes(config: LaunchConfig) -> dict[str, Mapping[str, Any]]:
        mappings = config.config.get("BlockDeviceMappings") or ()
        volumes = {
            id: ebs.default_root_volume(images[id], mappings)
            for id in config.images.values()
            if id in images
        }
        return {id: volume for id, volume in volumes.items() if volume is not None}

    return {
        name: replace(config, root_volumes=root_volumes(config)) for name, config in configs.items()
    }


async def with_extras(
    aws: AwsClient, prices: Prices, spec: ClusterSpec, offerings: Sequence[Offering]
) -> list[Offering]:
    """The same offerings with their volumes and public addresses, where it is known how they would
    be launched."""

    async def extras(name: str) -> tuple[list[dict[str, Any]], bool]:
        try:
            config = (await resolve_launch_configs(aws, spec, [name]))[name]
            records = await subnets.list_subnets(aws)
            is_public = gets_public_address(config.config, config.subnets, records)
        except ShoalError as error:  # preflight reports it
            _log.info("could not find the volumes of %s: %s", name, error)
            return [], False
        return ebs.new_volumes(config.mappings), is_public

    found = await run_all(extras(offering.node_type) for offering in offerings)
    await prices.refresh_volumes({v["VolumeType"] for volumes, _ in found for v in volumes})
    return [
        replace(
            offering,
            disks=" + ".join(
                filter(None, [ebs.describe_volumes(volumes), "a public IPv4 address" * is_public])
            ),
            disks_per_hour=ebs.hourly_cost(prices, volumes) + PUBLIC_ADDRESS_PER_HOUR * is_public,
        )
        for offering, (volumes, is_public) in zip(offerings, found, strict=True)
    ]


def gets_public_address(
    config: Mapping[str, Any], usable: Iterable[Subnet], records: Iterable[Mapping[str, Any]]
) -> bool:
    """Whether instances in one of the usable subnets get a public address: as the file's interface
    says, or the records of the subnets."""
    associate = launch_request.first_interface(config).get("AssociatePublicIpAddress")
    if associate is not None:
        return bool(associate)
    ids = {subnet.id for subnet in usable}
    return any(r.get("MapPublicIpOnLaunch") for r in records if r["SubnetId"] in ids)


def _is_in_container(spec: ClusterSpec, node_type: str) -> bool:
    """Whether a node of this type, in either role, runs in a container."""
    worker = spec.node_types[node_type].setup.container
    head = spec.head_setup.container if node_type == spec.head_node_type else None
    return bool(worker or head)


def _ami(
    config: Mapping[str, Any],
    type_info: InstanceTypeInfo,
    defaults: amis.DefaultAmis | None,
    in_container: bool,
) -> str:
    parameter = amis.ssm_parameter(config.get("ImageId"), type_info, in_container=in_container)
    if parameter is None or defaults is None:
        return str(config["ImageId"])
    return defaults.ami(parameter)


def named_groups(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The security groups that these configurations name."""
    return sorted({id for config in configs for id in launch_request.security_group_ids(config)})


def subnets_for(
    spec: ClusterSpec,
    config: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    group_vpcs: Mapping[str, str],
) -> list[Subnet]:
    """The subnets, of these records, that a node type with this configuration may use.
    `group_vpcs` are the VPCs of the security groups that the file names."""
    launch_request.check_interfaces(config)
    groups = launch_request.security_group_ids(config)
    vpc = next((group_vpcs[id] for id in groups if id in group_vpcs), None)
    return subnets.choose_subnets(
        records,
        ids=launch_request.subnet_ids(config),
        zones=_zones(spec, config),
        public=not uses_internal_ips(spec),
        vpc=vpc,
    )


def _zones(spec: ClusterSpec, config: Mapping[str, Any]) -> list[str]:
    """The zones that the file names for a node type, in its order."""
    if zone := launch_request.placement_zone(config):
        return [zone]
    zones = spec.provider.settings.get("availability_zone") or ()
    return [zone.strip() for zone in zones.split(",")] if isinstance(zones, str) else list(zones)


def uses_internal_ips(spec: ClusterSpec) -> bool:
    """Whether this machine is in the cluster's network and uses private addresses."""
    return bool(spec.provider.settings.get("use_internal_ips"))
