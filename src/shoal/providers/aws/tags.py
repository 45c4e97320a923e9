"""How AWS is told whose a thing is: tags that Ray's tools know, and our own by which we find it.

Everything is tagged by the call that creates it, so that nothing exists even for a moment
without a name on it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.node_phase import Role

CLUSTER = "shoal-cluster"
TOKEN = "shoal-token"
# On the volumes of a machine of which the file wants some to outlive it.
KEEPS = "shoal-keeps"

RAY_CLUSTER = "ray-cluster-name"
RAY_KIND = "ray-node-type"
RAY_NODE_TYPE = "ray-user-node-type"
RAY_STATUS = "ray-node-status"
RAY_NAME = "ray-node-name"
RAY_LAUNCH = "ray-launch-config"

_LONGEST_NAME = 60
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


def ownership(cluster: str) -> dict[str, str]:
    """What every thing of a cluster carries."""
    return {CLUSTER: cluster}


def instance_tags(
    cluster: str, node_type: str, role: Role, token: str, launch_hash: str
) -> dict[str, str]:
    """What an instance carries. `token` names the launch that asked for it."""
    return {
        **ownership(cluster),
        TOKEN: token,
        "Name": f"ray-{cluster}-{role}",
        RAY_NAME: f"ray-{cluster}-{role}",
        RAY_CLUSTER: cluster,
        RAY_KIND: role,
        RAY_NODE_TYPE: node_type,
        RAY_STATUS: "waiting-for-ssh",
        RAY_LAUNCH: launch_hash,
    }


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_dict(tags: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags or ()}


def at_creation(kind: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """The argument by which EC2 tags what it creates."""
    return [{"ResourceType": kind, "Tags": as_list(tags)}]


def of_cluster(cluster: str) -> list[dict[str, Any]]:
    """The filter for what belongs to a cluster."""
    return [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]


def name_for(cluster: str, *more: str) -> str:
    """A name that AWS allows for anything, one for each cluster: what had to be left out of the
    cluster's own name is made up for by a digest."""
    plain = _ODD.sub("-", "-".join(["shoal", cluster, *more]))
    if plain == "-".join(["shoal", cluster, *more]) and len(plain) <= _LONGEST_NAME:
        return plain
    digest = hashlib.sha256("\0".join([cluster, *more]).encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST_NAME - 9]}-{digest}"
