"""Runs all preflight checks of Compute Engine: every lookup at once, then the checks on what was
found. Creates nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import AuthError, ConfigError, DeniedError, ShoalError, TransientError
from shoal.core.logs import suppress_and_log
from shoal.providers.gcp import (
    cluster_resources,
    iam_permissions,
    launch_request,
    service_accounts,
)
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instances import list_cluster, tags_of
from shoal.providers.gcp.launch_config import LaunchLocations
from shoal.providers.gcp.preflight import (
    access,
    checks,
    disk_checks,
    network_checks,
    node_config_shapes,
    quotas,
)
from shoal.providers.gcp.preflight.checks import Facts, NodeTypeCheck, Record
from shoal.providers.gcp.project_settings import uses_internal_ips, zones_of
from shoal.providers.model import Finding, ImageSizeLookup, name_check
from shoal.providers.vm import tags
from shoal.providers.vm.launch_options import Subnet
from shoal.providers.vm.lookups import LookupRunner
from shoal.providers.vm.node_type_check import candidates, check_candidates
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_NOT_FOUND = ("notFound",)
# Google's answers for a machine type that does not exist.
_NO_TYPE = ("notFound", "invalid", "badRequest")
_NO_IMAGE = ("notFound", "forbidden")
_NO_ACCOUNT = ("NOT_FOUND", "notFound")


async def run_checks(
    gcp: GcpClient, locations: LaunchLocations, spec: ClusterSpec, image_size: ImageSizeLookup
) -> list[Finding]:
    """All findings. Without credentials, a project and a region there is nothing to look up."""
    if node_config_shapes.check_node_configs(spec):
        return []
    try:
        project = await gcp.compute("GET", "")
    except TransientError:
        raise
    except ShoalError as error:
        default = await asyncio.to_thread(gcp.default_project)
        found = access.check_project(error, gcp.project, default)
        return name_check("project", found)
    region = await gcp.compute("GET", f"regions/{locations.region}", ignore_codes=_NOT_FOUND)
    if not region:
        known = [str(entry["name"]) for entry in await gcp.items("regions")]
        return name_check("region", checks.check_region(locations.region, known))
    preflight = _Preflight(gcp, locations, spec, project, region)
    await preflight.run()
    return preflight.findings


@dataclass(frozen=True)
class _Lookups:
    """The results of all lookups, each None if it failed."""

    machine_types: Any
    accelerator_types: Any
    images: Any
    subnets: Any
    routers: Any
    permissions: Any
    accounts: Any
    policies: Any
    running: Any


class _Preflight:
    """One run of the checks, and its `findings`."""

    def __init__(
        self,
        gcp: GcpClient,
        locations: LaunchLocations,
        spec: ClusterSpec,
        project: Record,
        region: Record,
    ) -> None:
        self._gcp = gcp
        self._locations = locations
        self._spec = spec
        self._project = project
        self._region = region
        self._zones = sorted(str(url).rpartition("/")[2] for url in region.get("zones") or ())
        self.findings: list[Finding] = []
        self._lookups = LookupRunner(self.findings, (DeniedError, TransientError))

    async def run(self) -> None:
        named = zones_of(self._spec.provider.settings)
        wrong = checks.check_zones(named, self._locations.region, self._zones)
        self.findings += name_check("zone", wrong)
        found_types = await run_all(
            self._node_type_check(name)
            for name, node_type in self._spec.node_types.items()
            if node_type.node_config or name == self._spec.head_node_type
        )
        node_types = [node_type for node_type in found_types if node_type is not None]
        lookups = await self._look_up(node_types)
        facts = Facts(
            self._locations.region,
            self._zones,
            lookups.machine_types or {},
            lookups.accelerator_types or {},
        )
        for node_type in node_types:
            subnets = (lookups.subnets or {}).get(node_type.name)
            findings = self._check_node_type(node_type, facts, lookups, subnets, skip_zones=wrong)
            # A node type of which `up` launches nothing does not keep it from succeeding.
            if not node_type.min_count:
                findings = [replace(finding, severity="warning") for finding in findings]
            self.findings += findings
        self.findings += name_check("tags", checks.check_labels(self._spec.shoal.tags))
        launched = [node_type for node_type in node_types if node_type.min_count]
        limits = quotas.read_quotas(self._region, self._project)
        found = quotas.check_quotas(
            launched, facts, limits, lookups.running or {}, self._gcp.project
        )
        self.findings += name_check("quota", found)
        await self._check_access(launched, lookups)

    def _check_node_type(
        self,
        node_type: NodeTypeCheck,
        facts: Facts,
        lookups: _Lookups,
        subnets: Sequence[Subnet] | ShoalError | None,
        *,
        skip_zones: Sequence[Finding],
    ) -> list[Finding]:
        findings: list[Finding] = []
        zones: list[str] = []
        if isinstance(subnets, ShoalError):
            named = "networkInterfaces" in node_type.config
            at = node_type.at("networkInterfaces") if named else ()
            what, fix = subnets.what, subnets.fix
            if named:
                what = f"the network of {node_type.name} cannot be used"
                fix = "remove networkInterfaces to use the default one, or name another"
            subnet = Finding("error", what, subnets.why, fix, at, "subnet")
            findings.append(subnet)
        elif subnets is not None:
            zones = [subnet.zone for subnet in subnets]

        def check_type(candidate: NodeTypeCheck) -> list[Finding]:
            if lookups.machine_types is None or not zones or skip_zones:
                return []
            found = name_check("machine-type", checks.check_machine_type(candidate, facts, zones))
            if lookups.accelerator_types is not None:
                gpus = checks.check_accelerators(candidate, facts, zones)
                found += name_check("accelerator", gpus)
            return found

        findings += check_candidates(node_type, check_type)
        findings += name_check("maintenance", checks.check_maintenance(node_type))
        disks = disk_checks.check_disks(node_type)
        if lookups.images is not None:
            disks += disk_checks.check_image(node_type, facts, lookups.images)
        findings += name_check("image", disks)
        reachable = network_checks.check_reachable(node_type, self._spec)
        findings += name_check("public-address", reachable)
        if lookups.routers is not None and isinstance(subnets, list) and subnets and not reachable:
            nat = network_checks.check_internet(
                node_type, subnets[0].vpc, self._locations.region, lookups.routers
            )
            findings += name_check("internet", nat)
        return findings

    async def _check_access(self, launched: Sequence[NodeTypeCheck], lookups: _Lookups) -> None:
        spec, project = self._spec, self._gcp.project
        if lookups.permissions is not None:
            needed, held = lookups.permissions
            missing = [p for p in needed if p not in held]
            creates = service_accounts.creates_account(spec)
            found = access.check_permissions(missing, project, can_name_account=creates)
            self.findings += name_check("permissions", found)
            if not set(iam_permissions.FIREWALL) <= set(held):
                await self._lookups.attempt(self._check_firewall(launched, lookups))
        if lookups.accounts is not None:
            missing_accounts, unusable = lookups.accounts
            found = access.check_named_accounts(spec, missing_accounts, unusable, project)
            self.findings += name_check("service-account", found)
        public = [
            n.name
            for n in launched
            if network_checks.has_public_address(n.config) and not uses_internal_ips(spec)
        ]
        found = access.check_policies(lookups.policies or {}, spec, project, public=public)
        self.findings += name_check("policy", found)

    async def _check_firewall(self, launched: Sequence[NodeTypeCheck], lookups: _Lookups) -> None:
        """Whether rules exist that allow what those of the cluster would."""
        rules = await self._gcp.items("global/firewalls")
        ssh_from = await cluster_resources.ssh_ranges(self._gcp, self._spec, self._locations)
        networks = {
            subnets[0].vpc
            for node_type in launched
            if isinstance(subnets := (lookups.subnets or {}).get(node_type.name), list) and subnets
        }
        for network in sorted(networks - {""}):
            found = network_checks.check_firewall(
                self._gcp.project,
                self._spec.cluster_name,
                network,
                rules,
                cluster_resources.common_tags(self._spec),
                ssh_from,
            )
            self.findings += name_check("firewall", found)

    async def _look_up(self, node_types: Sequence[NodeTypeCheck]) -> _Lookups:
        lookups: dict[str, Coroutine[Any, Any, Any]] = {
            "machine_types": self._machine_types(node_types),
            "accelerator_types": self._accelerator_types(node_types),
            "images": self._images(node_types),
            "subnets": self._subnets(node_types),
            "routers": self._routers(node_types),
            "permissions": self._permissions(),
            "accounts": self._accounts(),
            "policies": self._policies(),
            "running": self._running(),
        }
        return _Lookups(**await self._lookups.attempt_all(lookups))

    async def _node_type_check(self, name: str) -> NodeTypeCheck | None:
        """A node type with its template; None if that cannot be read."""
        node_type, shoal = self._spec.node_types[name], self._spec.shoal
        try:
            config = await self._locations.merged_config(node_type.node_config)
        except ShoalError as error:
            keys = ("sourceInstanceTemplate", "sourceMachineImage")
            key = next((key for key in keys if node_type.node_config.get(key)), "node_config")
            what = f"{key} of {name} cannot be read"
            at = ("node_types", name, "node_config", key)
            severity: Any = "warning" if isinstance(error, TransientError) else "error"
            fix = f"remove {key}, or correct its name"
            self.findings.append(Finding(severity, what, error.why, fix, at, "template"))
            return None
        preferred = launch_request.machine_type(config)
        return NodeTypeCheck(
            name,
            config,
            node_type.min_workers,
            is_head=name == self._spec.head_node_type,
            fallback=tuple(t for t in shoal.fallback.get(name, ()) if t != preferred),
            on_demand_fallback=shoal.on_demand_fallback,
        )

    async def _machine_types(
        self, node_types: Sequence[NodeTypeCheck]
    ) -> dict[tuple[str, str], Record]:
        names = sorted({c.instance_type for n in node_types for c in candidates(n)})
        pairs = [(zone, name) for zone in self._zones for name in names]
        records = await run_all(
            self._gcp.compute("GET", f"zones/{zone}/machineTypes/{name}", ignore_codes=_NO_TYPE)
            for zone, name in pairs
        )
        return {pair: record for pair, record in zip(pairs, records, strict=True) if record}

    async def _accelerator_types(
        self, node_types: Sequence[NodeTypeCheck]
    ) -> dict[tuple[str, str], Record]:
        if not any(node_type.accelerators for node_type in node_types):
            return {}
        listings = await run_all(
            self._gcp.items(f"zones/{zone}/acceleratorTypes") for zone in self._zones
        )
        return {
            (zone, str(record["name"])): record
            for zone, records in zip(self._zones, listings, strict=True)
            for record in records
        }

    async def _images(self, node_types: Sequence[NodeTypeCheck]) -> dict[str, Record | None]:
        names = sorted({disk_checks.source_image(n.config) for n in node_types})
        paths = {name: path for name in names if (path := disk_checks.image_path(name))}
        records = await run_all(
            self._gcp.compute("GET", path, project=project, ignore_codes=_NO_IMAGE)
            for project, path in paths.values()
        )
        return {name: record or None for name, record in zip(paths, records, strict=True)}

    async def _subnets(
        self, node_types: Sequence[NodeTypeCheck]
    ) -> dict[str, list[Subnet] | ShoalError]:
        async def subnets(node_type: NodeTypeCheck) -> list[Subnet] | ShoalError:
            try:
                return await self._locations.subnets(node_type.config)
            except (DeniedError, TransientError):
                raise
            except ShoalError as error:
                return error

        found = await run_all(map(subnets, node_types))
        return {n.name: result for n, result in zip(node_types, found, strict=True)}

    async def _routers(self, node_types: Sequence[NodeTypeCheck]) -> list[Record]:
        if all(network_checks.has_public_address(n.config) for n in node_types):
            return []
        return [*await self._gcp.items(f"regions/{self._locations.region}/routers")]

    async def _permissions(self) -> tuple[list[str], list[str]]:
        """The permissions that `up` needs, and those of them and of firewall rules that the caller
        has."""
        needed = access.needed_permissions(self._spec)
        body = {"permissions": [*needed, *iam_permissions.FIREWALL]}
        reply = await self._gcp.call("cloudresourcemanager", "POST", ":testIamPermissions", body)
        return needed, [str(p) for p in reply.get("permissions") or ()]

    async def _accounts(self) -> tuple[set[str], set[str]]:
        """Of the service accounts that the file names, those that are missing, and those that the
        caller may not use. A caller who may not read an account may still use it."""
        missing, unusable = set(), set()

        async def look_up(email: str) -> None:
            path = f"/serviceAccounts/{email}"
            try:
                if not await self._gcp.call("iam", "GET", path, ignore_codes=_NO_ACCOUNT):
                    missing.add(email)
                    return
            except DeniedError as error:
                _log.debug("cannot read %s: %s", email, error.why)
            body = {"permissions": list(iam_permissions.ACT_AS)}
            reply = await self._gcp.call("iam", "POST", f"{path}:testIamPermissions", body)
            if not reply.get("permissions"):
                unusable.add(email)

        await run_all(map(look_up, access.named_accounts(self._spec)))
        if service_accounts.creates_account(self._spec):
            # This read fails if the project has not enabled the API.
            email = service_accounts.email_for(self._gcp.project, self._spec.cluster_name)
            with suppress_and_log(_log, f"read {email}", DeniedError):
                path = f"/serviceAccounts/{email}"
                await self._gcp.call("iam", "GET", path, ignore_codes=_NO_ACCOUNT)
        return missing, unusable

    async def _policies(self) -> dict[str, bool]:
        """Which policies of the organisation are enforced, as far as the caller may read them."""

        async def is_enforced(constraint: str) -> bool:
            try:
                reply = await self._gcp.call(
                    "cloudresourcemanager",
                    "POST",
                    ":getEffectiveOrgPolicy",
                    {"constraint": constraint},
                )
            except (DeniedError, AuthError, ConfigError) as error:
                _log.debug("cannot read the policy %s: %s", constraint, error.why)
                return False
            denies_all = (reply.get("listPolicy") or {}).get("allValues") == "DENY"
            return denies_all or bool((reply.get("booleanPolicy") or {}).get("enforced"))

        enforced = await run_all(map(is_enforced, access.CONSTRAINTS))
        return dict(zip(access.CONSTRAINTS, enforced, strict=True))

    async def _running(self) -> Mapping[str, int]:
        """How many instances of each node type the cluster has."""
        counts: dict[str, int] = {}
        for record in await list_cluster(self._gcp, self._spec.cluster_name):
            if record.get("status") in ("PROVISIONING", "STAGING", "RUNNING"):
                name = tags_of(record).get(tags.RAY_USER_NODE_TYPE, "")
                counts[name] = counts.get(name, 0) + 1
        return counts
