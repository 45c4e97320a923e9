"""Creates and deletes the resources that a cluster's instances need: firewall rules, and service
accounts where the file names none.

A resource is created only when it is missing. It carries the cluster's name, and is deleted after
the cluster's instances.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.node_phase import Role
from shoal.providers.gcp import disks, firewall, service_accounts
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.launch_config import LaunchLocations
from shoal.providers.gcp.project_settings import uses_internal_ips
from shoal.providers.vm.caller_address import fetch_caller_address, source_ranges, this_machine
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchResources:
    """What instances are launched with: by role, the email of the service account for those to
    which the file gives none; empty for no account."""

    service_accounts: Mapping[Role, str] = field(default_factory=dict)


async def ensure_resources(
    gcp: GcpClient,
    spec: ClusterSpec,
    locations: LaunchLocations,
    configs: Mapping[str, Mapping[str, Any]],
) -> LaunchResources:
    """Create what is missing for launches with these configurations, by node type."""
    networks = {await locations.network(config) for config in configs.values()} - {""}
    ssh_from = await ssh_ranges(gcp, spec, locations) if networks else []
    account = service_accounts.named_account(spec)

    async def ensure_account() -> None:
        nonlocal account
        if service_accounts.creates_account(spec):
            account = await service_accounts.ensure_account(gcp, spec.cluster_name)

    own_tags = common_tags(spec)
    rules = [
        firewall.ensure_rules(gcp, spec.cluster_name, network, ssh_from, own_tags, _machine(spec))
        for network in sorted(networks)
    ]
    await run_all([ensure_account(), *rules])
    return LaunchResources({"head": account, "worker": account})


def _machine(spec: ClusterSpec) -> str:
    """The machine whose address SSH is allowed from; empty where it is not one's own."""
    is_own = not (spec.shoal.ssh_from or spec.auth.ssh_proxy_command or uses_internal_ips(spec))
    return this_machine() if is_own else ""


def common_tags(spec: ClusterSpec) -> list[str]:
    """The network tags that the file gives to every node type."""
    tags = [
        set((node_type.node_config.get("tags") or {}).get("items") or ())
        for node_type in spec.node_types.values()
    ]
    return sorted(set.intersection(*tags)) if tags else []


def resources_of_head(spec: ClusterSpec, head: Mapping[str, Any], project: str) -> LaunchResources:
    """The resources for workers that the head launches. It may create none. `head` is Google's
    record of it. An account that the file gives to the head alone is not for workers."""
    shared = {
        service_accounts.named_account(spec),
        service_accounts.email_for(project, spec.cluster_name),
    }
    of_head = [str(account["email"]) for account in head.get("serviceAccounts") or ()]
    return LaunchResources({"worker": next((e for e in of_head if e in shared), "")})


async def ssh_ranges(gcp: GcpClient, spec: ClusterSpec, locations: LaunchLocations) -> list[str]:
    """The ranges from which SSH is allowed: those of the file, else this machine's. SSH to private
    addresses comes from the network or a VPN, and through a proxy command from the proxy, which
    is usually in the network."""
    if spec.shoal.ssh_from:
        return list(spec.shoal.ssh_from)
    if spec.auth.ssh_proxy_command or uses_internal_ips(spec):
        ranges = await locations.ip_ranges()
        return ranges if spec.auth.ssh_proxy_command else [*ranges, *source_ranges(ranges)]
    return [(await fetch_caller_address()).cidr]


async def delete_resources(gcp: GcpClient, cluster: str) -> list[str]:
    """Delete what was created for a cluster besides its instances; returns descriptions of it."""
    deleted = [
        name
        for names in await run_all(
            [
                firewall.delete_rules(gcp, cluster),
                disks.delete_leftover(gcp, cluster),
                service_accounts.delete_account(gcp, cluster),
            ]
        )
        for name in names
    ]
    for name in deleted:
        _log.info("deleted %s", name)
    return deleted
