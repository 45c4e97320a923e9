"""The firewall rules of a cluster, which apply to its network tag: all traffic between its
instances, and SSH from the caller. Rules that Shoal did not create are never changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.concurrency import run_all
from shoal.providers.gcp import names
from shoal.providers.gcp.gcp_client import GcpClient

_DESCRIPTION = "created by Shoal for cluster "


def rules(cluster: str, network: str, ssh_from: Sequence[str]) -> list[dict[str, Any]]:
    """The rules that a cluster needs in a network."""
    tag = names.network_tag(cluster)
    common = {
        "network": f"global/networks/{network}",
        "description": f"{_DESCRIPTION}{cluster}",
        "direction": "INGRESS",
        "targetTags": [tag],
    }
    return [
        {
            **common,
            "name": f"{tag}-internal",
            "sourceTags": [tag],
            "allowed": [{"IPProtocol": "all"}],
        },
        {
            **common,
            "name": f"{tag}-ssh",
            "sourceRanges": sorted(ssh_from),
            "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
        },
    ]


async def ensure_rules(gcp: GcpClient, cluster: str, network: str, ssh_from: Sequence[str]) -> None:
    """Create the rules that are missing, and allow SSH from `ssh_from` only."""
    await run_all(_ensure(gcp, rule) for rule in rules(cluster, network, ssh_from))


async def _ensure(gcp: GcpClient, rule: Mapping[str, Any]) -> None:
    path = f"global/firewalls/{rule['name']}"
    present = await gcp.compute("GET", path, ignore_codes=("notFound",))
    if not present:
        # Another command may create the same rule at this moment.
        await gcp.perform("POST", "global/firewalls", rule, ignore_codes=("alreadyExists",))
    elif sorted(present.get("sourceRanges") or ()) != sorted(rule.get("sourceRanges") or ()):
        await gcp.perform("PATCH", path, {"sourceRanges": rule["sourceRanges"]})


async def delete_rules(gcp: GcpClient, cluster: str) -> list[str]:
    """Delete the rules that were created for a cluster; returns descriptions of them."""
    listed = await gcp.items("global/firewalls")
    own = [str(r["name"]) for r in listed if r.get("description") == f"{_DESCRIPTION}{cluster}"]
    await run_all(
        gcp.perform("DELETE", f"global/firewalls/{name}", ignore_codes=("notFound",))
        for name in own
    )
    return [f"firewall rule {name}" for name in own]
