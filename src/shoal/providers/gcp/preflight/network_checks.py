"""Preflight checks of networks and of SSH: whether this machine reaches the head, and nodes reach
the internet. Pure: records in, findings out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.providers.gcp import firewall, firewall_coverage, names
from shoal.providers.gcp.preflight.checks import NodeTypeCheck, Record
from shoal.providers.gcp.project_settings import uses_internal_ips
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_ACCESS = {"name": "External NAT", "type": "ONE_TO_ONE_NAT"}


def has_public_address(config: Mapping[str, Any]) -> bool:
    """Whether instances get public addresses: those without an interface in the file do."""
    interfaces = config.get("networkInterfaces") or ({"accessConfigs": [_ACCESS]},)
    return bool(interfaces[0].get("accessConfigs"))


def check_reachable(node_type: NodeTypeCheck, spec: ClusterSpec) -> list[Finding]:
    """Whether this machine can connect to the head."""
    is_reachable = has_public_address(node_type.config) or uses_internal_ips(spec)
    if not node_type.is_head or is_reachable or spec.auth.ssh_proxy_command:
        return []
    interfaces = [dict(entry) for entry in node_type.config["networkInterfaces"]]
    interfaces[0]["accessConfigs"] = [_ACCESS]
    return [
        Finding(
            "error",
            "the head has no public address",
            why="its network interface has no accessConfigs, so this machine cannot connect to it",
            fix=f"networkInterfaces: {json.dumps(interfaces)}, or if this machine is in the "
            "network: provider: {use_internal_ips: true}",
            at=node_type.at("networkInterfaces"),
        )
    ]


def check_internet(
    node_type: NodeTypeCheck, network: str, region: str, routers: Sequence[Record]
) -> list[Finding]:
    """Whether instances without a public address reach the internet: by Cloud NAT."""
    if has_public_address(node_type.config) or not network:
        return []
    has_nat = any(
        router.get("nats") and str(router.get("network", "")).rpartition("/")[2] == network
        for router in routers
    )
    if has_nat:
        return []
    return [
        Finding(
            "warning",
            f"{node_type.name} cannot reach the internet",
            why="its instances have no public address, and the network has no Cloud NAT in "
            f"{region}; setup commands that download would fail",
            fix=f"gcloud compute routers create shoal-nat --network {network} --region {region}\n"
            "gcloud compute routers nats create shoal-nat --router shoal-nat --region "
            f"{region} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges",
            at=node_type.at("networkInterfaces"),
        )
    ]


def check_firewall(
    project: str,
    cluster: str,
    network: str,
    existing: Sequence[Record],
    own_tags: Sequence[str],
    ssh_from: Sequence[str],
) -> list[Finding]:
    """Whether the rules that exist allow SSH from `ssh_from` and traffic between nodes, for a
    caller who may not create rules. `own_tags` are the network tags of the file."""
    tag = names.network_tag(cluster)
    if firewall_coverage.covers(existing, network, {tag, *own_tags}, ssh_from):
        return []
    needed = firewall.rules(cluster, network, ssh_from)
    commands = [firewall.gcloud_command(project, rule) for rule in needed]
    commands[-1] += ", or have an administrator of the project run these"
    return [
        Finding(
            "error",
            "you may not create firewall rules, and those that exist do not suffice",
            why=f"network {network} must allow SSH from {', '.join(ssh_from)} and all traffic "
            f"between instances with the tag {tag}",
            fix="\n".join(commands),
        )
    ]
