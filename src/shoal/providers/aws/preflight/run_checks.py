"""Runs all preflight checks of AWS: every lookup at once, then the checks on what was found.
Creates nothing."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, ConfigError, DeniedError, ShoalError, TransientError
from shoal.core.logs import suppress_and_log
from shoal.providers.aws import (
    amis,
    cluster_resources,
    iam_roles,
    instance_types,
    launch_config,
    launch_request,
    security_group,
    subnets,
)
from shoal.providers.aws.aws_client import AwsClient, regions
from shoal.providers.aws.preflight import (
    access,
    checks,
    dry_run,
    node_config_shapes,
    quotas,
    volume_checks,
)
from shoal.providers.aws.preflight.checks import Facts, NodeTypeCheck
from shoal.providers.model import Finding, ImageSizeLookup, name_check
from shoal.providers.vm import ssh_keys
from shoal.providers.vm.lookups import LookupRunner
from shoal.providers.vm.node_type_check import candidates, check_candidates
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)


async def run_checks(
    aws: AwsClient, spec: ClusterSpec, image_size: ImageSizeLookup
) -> list[Finding]:
    """All findings. Without credentials, a valid region and readable configurations there is
    nothing to look up."""
    if aws.region not in regions() or node_config_shapes.check_node_configs(spec):
        return []
    preflight = _Preflight(aws, spec, image_size)
    try:
        caller, _ = await run_all([_caller_arn(aws), preflight.run()])
    except AuthError as error:
        return [Finding("error", error.what, error.why, error.fix)]
    denied = access.check_permissions(preflight.denied, caller or "")
    return [*preflight.findings, *name_check("permissions", denied)]


async def _caller_arn(aws: AwsClient) -> str:
    """The ARN of the caller, empty if AWS does not report it. Raises errors of the credentials,
    which would repeat in every other lookup."""
    try:
        return str((await aws.call("sts", "get_caller_identity"))["Arn"])
    except DeniedError:
        return ""


@dataclass(frozen=True)
class _Lookups:
    """The results of all lookups, each None if it failed."""

    types: Any
    offered_zones: Any
    amis: Any
    container_sizes: Any
    subnets: Any
    caller: Any
    key_pairs: Any
    security_groups: Any
    profiles: Any
    quota_limits: Any
    quota_usage: Any
    dry_run: dry_run.DryRunResult | None


class _Preflight:
    """One run of the checks: its `findings`, and the calls that a dry run was `denied`."""

    def __init__(self, aws: AwsClient, spec: ClusterSpec, image_size: ImageSizeLookup) -> None:
        self._aws = aws
        self._spec = spec
        self._image_size = image_size
        self.findings: list[Finding] = []
        self._lookups = LookupRunner(self.findings, (AuthError, TransientError))
        self.denied: Sequence[str] = ()
        self._is_caller_certain = True

    async def run(self) -> None:
        configs = await self._lookups.attempt(self._merged_configs())
        node_types = [
            self._node_type_check(name, configs[name])
            for name, node_type in self._spec.node_types.items()
            if configs is not None and (node_type.node_config or name == self._spec.head_node_type)
        ]
        lookups = await self._look_up(node_types, configs or {})
        if lookups.dry_run is not None:
            self.denied = lookups.dry_run.denied
            self.findings += name_check("dry-run", lookups.dry_run.findings)
        login_keys = await self._login_keys() if lookups.key_pairs else ()
        images, default_amis = lookups.amis or ({}, None)
        facts = Facts(
            lookups.types or {},
            lookups.offered_zones or {},
            images,
            default_amis,
            now=self._aws.clock.now(),
            ssh_user=self._spec.auth.ssh_user or "",
        )
        for node_type in node_types:
            findings = self._check_node_type(node_type, lookups, facts, login_keys)
            # A node type of which `up` launches nothing does not keep it from succeeding.
            if not node_type.min_count:
                findings = [replace(finding, severity="warning") for finding in findings]
            self.findings += findings
        head_role = access.check_head_role(self._spec, lookups.profiles or ())
        self.findings += name_check("instance-profile", head_role)
        self.findings += name_check("tags", checks.check_tags(self._spec.shoal.tags))
        if lookups.quota_limits and lookups.quota_usage is not None:
            limits, usage = lookups.quota_limits, lookups.quota_usage
            found = quotas.check_quotas(node_types, facts.types, limits, usage)
            self.findings += name_check("quota", found)

    def _check_node_type(
        self, node_type: NodeTypeCheck, lookups: _Lookups, facts: Facts, login_keys: Sequence[str]
    ) -> list[Finding]:
        findings: list[Finding] = []
        zones: set[str] = set()
        caller = lookups.caller or ()
        if lookups.subnets is not None:
            groups = lookups.security_groups or {}
            group_vpcs = {id: str(group["VpcId"]) for id, group in groups.items()}
            if not access.has_public_address(node_type, self._spec, lookups.subnets, group_vpcs):
                caller = ()
            zones, findings = checks.check_subnets(
                node_type, self._spec, lookups.subnets, group_vpcs
            )
            findings = name_check("subnet", findings)

        def check_type_and_ami(candidate: NodeTypeCheck) -> list[Finding]:
            found: list[Finding] = []
            if lookups.types is not None and lookups.offered_zones is not None:
                types = checks.check_instance_type(candidate, facts, zones, self._aws.region)
                found += name_check("instance-type", types)
            if lookups.amis is not None:
                found += name_check("ami", checks.check_ami(candidate, facts))
            return found

        findings += check_candidates(node_type, check_type_and_ami)
        if lookups.amis is not None:
            sizes = (lookups.container_sizes or {}).get(node_type.name, {})
            volumes = volume_checks.check_root_volume(node_type, facts)
            volumes += volume_checks.check_root_device(node_type, facts)
            findings += name_check("root-volume", volumes)
            fitting = volume_checks.check_container_images(node_type, facts, sizes)
            findings += name_check("image-size", fitting)
        profile = access.check_instance_profile(node_type, lookups.profiles or ())
        findings += name_check("instance-profile", profile)
        findings += name_check("user-data", checks.check_user_data(node_type))
        if lookups.key_pairs is not None:
            certain = not self._ssh_chooses_key(node_type)
            keys = login_keys if certain else _public_keys_in_home()
            pair = access.check_key_pair(node_type, lookups.key_pairs, keys, certain=certain)
            findings += name_check("key-pair", pair)
        return findings + name_check("ssh-access", self._ssh_access(node_type, lookups, caller))

    def _ssh_access(
        self, node_type: NodeTypeCheck, lookups: _Lookups, caller: Sequence[str]
    ) -> list[Finding]:
        """Findings about the security groups. About our address they are only warnings if it was
        seen through a proxy: SSH may come from another one."""
        missing: list[Finding] = []
        closed: list[Finding] = []
        if lookups.security_groups is not None:
            missing = access.check_security_groups(node_type, lookups.security_groups, ())
            if not missing:
                closed = access.check_security_groups(node_type, lookups.security_groups, caller)
        if not launch_request.security_group_ids(node_type.config):
            closed += access.check_created_rules(self._spec, caller)
        if not self._is_caller_certain:
            why = "your address was seen through an HTTP proxy; SSH may come from another"
            closed = [replace(f, severity="warning", why=why) for f in closed]
        return [*missing, *closed]

    async def _look_up(
        self, node_types: Sequence[NodeTypeCheck], configs: Mapping[str, Mapping[str, Any]]
    ) -> _Lookups:
        aws, spec = self._aws, self._spec
        launched = [node_type for node_type in node_types if node_type.min_count]
        type_names = {c.instance_type for n in node_types for c in candidates(n)}
        group_ids = launch_config.named_groups(n.config for n in node_types)
        lookups: dict[str, Coroutine[Any, Any, Any]] = {
            "types": instance_types.describe_candidates(aws, spec, configs),
            "offered_zones": self._offered_zones(type_names),
            "amis": self._amis(node_types),
            "container_sizes": self._container_sizes(node_types, configs),
            "subnets": self._subnets(),
            "caller": self._caller_ranges(node_types),
            "key_pairs": self._key_pairs(node_types),
            "security_groups": self._security_groups(group_ids),
            "profiles": self._missing_profiles(node_types),
            "quota_limits": quotas.fetch_limits(aws, launched),
            "quota_usage": quotas.fetch_usage(aws, spec.cluster_name),
            "dry_run": dry_run.dry_run(aws, spec, [n.name for n in launched]),
        }
        return _Lookups(**await self._lookups.attempt_all(lookups))

    async def _merged_configs(self) -> dict[str, dict[str, Any]]:
        return await launch_config.merged_node_configs(
            self._aws, self._spec, sorted(self._spec.node_types)
        )

    def _node_type_check(self, name: str, config: Mapping[str, Any]) -> NodeTypeCheck:
        shoal = self._spec.shoal
        preferred = launch_request.instance_type(config)
        return NodeTypeCheck(
            name,
            config,
            self._spec.node_types[name].min_workers,
            is_head=name == self._spec.head_node_type,
            container_images=self._container_images(name),
            fallback=tuple(t for t in shoal.fallback.get(name, ()) if t != preferred),
            on_demand_fallback=shoal.on_demand_fallback,
        )

    def _container_images(self, name: str) -> dict[str, tuple[str, ...]]:
        """The container images of a node type, with their places in the file."""
        images: dict[str, tuple[str, ...]] = {}
        if worker := self._spec.node_types[name].setup.container:
            images[worker.image] = ("node_types", name, "setup", "container", "image")
        if name == self._spec.head_node_type and self._spec.head_setup.container:
            images[self._spec.head_setup.container.image] = ("head_setup", "container", "image")
        return images

    async def _subnets(self) -> list[dict[str, Any]]:
        records = await subnets.list_subnets(self._aws)
        is_public = any(record.get("MapPublicIpOnLaunch") for record in records)
        if not is_public and not launch_config.uses_internal_ips(self._spec):
            # Only for better advice.
            with suppress_and_log(_log, "look up route tables", ShoalError):
                return await subnets.with_internet_routes(self._aws, records)
        return records

    async def _offered_zones(self, type_names: set[str]) -> dict[str, set[str]]:
        offerings = await self._aws.paginate(
            "ec2",
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": sorted(type_names)}],
        )
        zones: dict[str, set[str]] = {}
        for offering in offerings:
            zones.setdefault(offering["InstanceType"], set()).add(offering["Location"])
        return zones

    async def _amis(
        self, node_types: Sequence[NodeTypeCheck]
    ) -> tuple[dict[str, Any], amis.DefaultAmis]:
        """The records of the AMIs in use, by id, and the default AMIs. Records of these are needed
        only where something must fit on them."""
        configured = [node_type.config.get("ImageId") for node_type in node_types]
        defaults = await amis.DefaultAmis.look_up(self._aws)
        ids = {str(image) for image in configured if amis.is_explicit(image)}
        if any(n.container_images or n.config.get("BlockDeviceMappings") for n in node_types):
            ids |= defaults.ids
        return await amis.describe(self._aws, ids), defaults

    async def _container_sizes(
        self, node_types: Sequence[NodeTypeCheck], configs: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, int | None]]:
        """The sizes of the container images of each node type, for its architecture."""
        if not any(node_type.container_images for node_type in node_types):
            return {}
        types = await instance_types.describe_candidates(self._aws, self._spec, configs)
        pairs = [
            (node_type, image)
            for node_type in node_types
            for image in node_type.container_images
            if node_type.instance_type in types
        ]
        sizes = await run_all(
            self._image_size(image, types[node_type.instance_type].architecture)
            for node_type, image in pairs
        )
        by_node_type: dict[str, dict[str, int | None]] = {}
        for (node_type, image), size in zip(pairs, sizes, strict=True):
            by_node_type.setdefault(node_type.name, {})[image] = size
        return by_node_type

    async def _caller_ranges(self, node_types: Sequence[NodeTypeCheck]) -> Sequence[str]:
        """The address range from which we log in; empty if it does not matter or is unknown. It
        must be known only for a security group that is created without rules for SSH."""
        if self._spec.provider.settings.get("use_internal_ips"):
            return ()
        try:
            caller = await security_group.caller_address(self._aws)
        except ConfigError:
            settings = self._spec.provider.settings.get("security_group") or {}
            has_rules = self._spec.shoal.ssh_from or security_group.has_ssh_rules(settings)
            has_groups = all(launch_request.security_group_ids(n.config) for n in node_types)
            if has_rules or has_groups or self._spec.auth.ssh_proxy_command:
                return ()
            raise
        self._is_caller_certain = not caller.via_proxy
        return () if self._spec.auth.ssh_proxy_command else [caller.cidr]

    async def _key_pairs(self, node_types: Sequence[NodeTypeCheck]) -> dict[str, str]:
        if not any(node_type.config.get("KeyName") for node_type in node_types):
            return {}
        response = await self._aws.call("ec2", "describe_key_pairs", IncludePublicKey=True)
        return {pair["KeyName"]: pair.get("PublicKey", "") for pair in response["KeyPairs"]}

    def _ssh_chooses_key(self, node_type: NodeTypeCheck) -> bool:
        """Whether ssh itself chooses the login key, as `ssh_targets` leaves it to do."""
        has_key_name = "KeyName" in self._spec.node_types[node_type.name].node_config
        return has_key_name and self._spec.auth.ssh_private_key is None

    async def _login_keys(self) -> Sequence[str]:
        """The public key of our login key; none if it is missing, an empty one if unreadable."""
        if not ssh_keys.private_key_path(self._spec.auth).is_file():
            return ()
        try:
            return (await ssh_keys.public_key(self._spec.auth),)
        except ConfigError:
            return ("",)

    async def _missing_profiles(self, node_types: Sequence[NodeTypeCheck]) -> set[str]:
        """The instance profiles that the file names and IAM does not have. A caller who may not
        read one may still use it."""
        names = {iam_roles.profile_name(n.config) for n in node_types}
        names.add(iam_roles.name_of(cluster_resources.head_role(self._spec)))
        names.discard("")

        async def is_missing(name: str) -> bool:
            try:
                return not await iam_roles.profile_exists(self._aws, name)
            except DeniedError:
                return False

        found = await run_all(is_missing(name) for name in sorted(names))
        return {name for name, missing in zip(sorted(names), found, strict=True) if missing}

    async def _security_groups(self, ids: Sequence[str]) -> dict[str, Any]:
        if not ids:
            return {}
        groups = await security_group.describe_groups(self._aws, ids)
        return {group["GroupId"]: group for group in groups}


def _public_keys_in_home() -> list[str]:
    """The public keys in ~/.ssh."""
    keys = []
    for file in Path("~/.ssh").expanduser().glob("*.pub"):
        with suppress_and_log(_log, f"read {file}", OSError, UnicodeDecodeError):
            keys.append(file.read_text())
    return keys
