"""Tags on AWS resources: the ones Ray's tools know, and Shoal's own, by which resources are found.

Every resource is tagged by the call that creates it, so that none ever exists untagged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.node_phase import Role
from shoal.providers.vm.tags import CLUSTER as CLUSTER
from shoal.providers.vm.tags import RAY_CLUSTER_NAME as RAY_CLUSTER_NAME
from shoal.providers.vm.tags import RAY_LAUNCH_CONFIG as RAY_LAUNCH_CONFIG
from shoal.providers.vm.tags import RAY_NODE_KIND as RAY_NODE_KIND
from shoal.providers.vm.tags import RAY_NODE_NAME as RAY_NODE_NAME
from shoal.providers.vm.tags import RAY_NODE_STATUS as RAY_NODE_STATUS
from shoal.providers.vm.tags import RAY_USER_NODE_TYPE as RAY_USER_NODE_TYPE
from shoal.providers.vm.tags import TOKEN as TOKEN

# On the volumes of an instance when at least one of them must outlive it.
RETAINED = "shoal-keeps"

# On instances: the volumes that they were launched with, for their price.
VOLUMES = "shoal-volumes"

# On baked AMIs and their snapshots: what identifies the AMI, and what it was made from.
IMAGE_KEY = "shoal-image"
SETUP_HASH = "shoal-setup-hash"
BASE_IMAGE = "shoal-base-image"

_MAX_NAME_LENGTH = 60
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]+")


def cluster_tags(cluster: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tags of every resource of a cluster: the file's `own`, and Shoal's."""
    return {**(own or {}), CLUSTER: cluster}


def instance_tags(
    cluster: str, node_type: str, role: Role, token: str, launch_hash: str
) -> dict[str, str]:
    """The tags of an instance. `token` identifies the launch request that created it."""
    return {
        **cluster_tags(cluster),
        TOKEN: token,
        "Name": f"ray-{cluster}-{role}",
        RAY_NODE_NAME: f"ray-{cluster}-{role}",
        RAY_CLUSTER_NAME: cluster,
        RAY_NODE_KIND: role,
        RAY_USER_NODE_TYPE: node_type,
        RAY_NODE_STATUS: "waiting-for-ssh",
        RAY_LAUNCH_CONFIG: launch_hash,
    }


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_dict(tags: Sequence[Mapping[str, str]] | None) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags or ()}


def tag_specifications(resource_type: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """The TagSpecifications argument of the EC2 call that creates a resource."""
    return [{"ResourceType": resource_type, "Tags": as_list(tags)}]


def cluster_filter(cluster: str | None) -> list[dict[str, Any]]:
    """The filter for the resources of a cluster, or of every cluster."""
    if cluster is None:
        return [{"Name": "tag-key", "Values": [CLUSTER]}]
    return [{"Name": f"tag:{CLUSTER}", "Values": [cluster]}]


def resource_name(cluster: str, *suffixes: str) -> str:
    """A name that every AWS service accepts, unique per cluster. A digest replaces what is
    removed from the cluster's own name."""
    full = "-".join(["shoal", cluster, *suffixes])
    valid = _INVALID_CHARACTERS.sub("-", full)
    if valid == full and len(valid) <= _MAX_NAME_LENGTH:
        return valid
    digest = hashlib.sha256("\0".join([cluster, *suffixes]).encode()).hexdigest()[:8]
    return f"{valid[: _MAX_NAME_LENGTH - 9]}-{digest}"
