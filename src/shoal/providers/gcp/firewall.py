"""The firewall rules of a cluster, which apply to its network tag: all traffic between its
instances, and SSH from each machine that uses it. Rules that Shoal did not create are never
changed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shoal.core.concurrency import run_all
from shoal.core.errors import DeniedError
from shoal.providers.gcp import firewall_coverage, names
from shoal.providers.gcp.gcp_client import GcpClient

_log = logging.getLogger(__name__)

_DESCRIPTION = "created by Shoal for cluster "


def rules(
    cluster: str, network: str, ssh_from: Sequence[str], machine: str = ""
) -> list[dict[str, Any]]:
    """The rules that a cluster needs in a network. `machine` identifies the one that `ssh_from` is
    the address of; empty if the ranges are the file's."""
    tag = names.network_tag(cluster)
    prefix = names.resource_prefix(cluster, network)
    common = {
        "network": f"global/networks/{network}",
        "description": f"{_DESCRIPTION}{cluster}",
        "direction": "INGRESS",
        "targetTags": [tag],
    }
    return [
        {
            **common,
            "name": f"{prefix}-internal",
            "sourceTags": [tag],
            "allowed": [{"IPProtocol": "all"}],
        },
        {
            **common,
            "name": f"{prefix}-ssh-{machine}".rstrip("-"),
            "sourceRanges": sorted(ssh_from),
            "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
        },
    ]


async def ensure_rules(
    gcp: GcpClient,
    cluster: str,
    network: str,
    ssh_from: Sequence[str],
    own_tags: Collection[str] = (),
    machine: str = "",
) -> None:
    """Create the rules that are missing, and allow SSH from `ssh_from`, in place of addresses that
    this `machine` had before. None is created if existing rules for the tags of the file
    (`own_tags`) allow as much, or if the caller may not create any and existing rules of the
    network do."""
    if own_tags:
        given = firewall_coverage.targeting(await gcp.items("global/firewalls"), own_tags)
        if firewall_coverage.covers(given, network, own_tags, ssh_from):
            _log.info("the rules for %s allow what %s needs", ", ".join(own_tags), cluster)
            return
    wanted = rules(cluster, network, ssh_from, machine)
    try:
        await run_all(_ensure(gcp, rule) for rule in wanted)
    except DeniedError as error:
        all_tags = {names.network_tag(cluster), *own_tags}
        listed = await gcp.items("global/firewalls", ignore_codes=("forbidden",))
        if not firewall_coverage.covers(listed, network, all_tags, ssh_from):
            raise _denied(gcp.project, wanted, error) from None
        _log.info("existing rules of %s allow what %s needs: %s", network, cluster, error.why)


def gcloud_command(project: str, rule: Mapping[str, Any]) -> str:
    """The command that creates a rule, for a user with the permission."""
    sources = (
        f"--source-ranges {','.join(rule['sourceRanges'])} --allow tcp:22"
        if "sourceRanges" in rule
        else f"--source-tags {rule['sourceTags'][0]} --allow all"
    )
    return (
        f"gcloud compute firewall-rules create {rule['name']} --project {project} "
        f"--network {str(rule['network']).rpartition('/')[2]} "
        f"--target-tags {rule['targetTags'][0]} {sources}"
    )


def _denied(project: str, wanted: Sequence[Mapping[str, Any]], error: DeniedError) -> DeniedError:
    """The error for rules that are needed and may not be created, with what creates them."""
    commands = [gcloud_command(project, rule) for rule in wanted]
    return DeniedError(
        "could not create the cluster's firewall rules",
        why=error.why,
        fix="have an administrator create them:\n" + "\n".join(commands),
    )


async def _ensure(gcp: GcpClient, rule: Mapping[str, Any]) -> None:
    path = f"global/firewalls/{rule['name']}"
    present = await gcp.compute("GET", path, ignore_codes=("notFound",))
    if not present:
        # Another command may create the same rule at this moment.
        await gcp.perform("POST", "global/firewalls", rule, ignore_codes=("alreadyExists",))
    elif sorted(present.get("sourceRanges") or ()) != sorted(rule.get("sourceRanges") or ()):
        await gcp.perform("PATCH", path, {"sourceRanges": rule["sourceRanges"]})


async def list_rules(gcp: GcpClient, cluster: str) -> list[dict[str, Any]]:
    """The rules that were created for a cluster."""
    listed = await gcp.items("global/firewalls")
    return [rule for rule in listed if cluster_of(rule) == cluster]


def cluster_of(rule: Mapping[str, Any]) -> str:
    """The cluster that a rule was created for; empty if Shoal did not create it."""
    description = str(rule.get("description") or "")
    return description[len(_DESCRIPTION) :] if description.startswith(_DESCRIPTION) else ""


async def allow_ssh_from(
    gcp: GcpClient, cluster: str, ranges: Sequence[str], machine: str
) -> list[str]:
    """Have the cluster's rules allow SSH from these ranges for this machine, in every network that
    has rules; returns the names of the rules that did not."""
    listed = await list_rules(gcp, cluster)
    present = {str(rule["name"]): rule for rule in listed}
    networks = {str(rule["network"]).rpartition("/")[2] for rule in listed}
    wanted = [rules(cluster, network, ranges, machine)[1] for network in sorted(networks)]
    outdated = [
        rule
        for rule in wanted
        if sorted(present.get(rule["name"], {}).get("sourceRanges") or ()) != sorted(ranges)
    ]
    await run_all(_ensure(gcp, rule) for rule in outdated)
    return [str(rule["name"]) for rule in outdated]


async def delete_rules(gcp: GcpClient, cluster: str) -> list[str]:
    """Delete the rules that were created for a cluster; returns descriptions of them."""
    own = [str(rule["name"]) for rule in await list_rules(gcp, cluster)]
    await run_all(
        gcp.perform("DELETE", f"global/firewalls/{name}", ignore_codes=("notFound",))
        for name in own
    )
    return [f"firewall rule {name}" for name in own]
