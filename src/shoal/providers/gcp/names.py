"""Names and labels that Google accepts, for clusters and node types of any name. Pure.

Google's labels are lower case without dots, and its names have 63 characters. What does not fit is
replaced by a digest; the name itself stands in the instance's metadata.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.node_phase import Role
from shoal.providers.vm import tags

# The metadata key with the tags whose values are not valid labels.
METADATA_TAGS = "shoal-tags"

_DIGEST_LENGTH = 8
_MAX_LABEL_LENGTH = 63
_VALID_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_INVALID_IN_LABEL = re.compile(r"[^a-z0-9_-]+")
# Also runs of dashes: two of them end the prefix of a cluster, so that it begins no other's names.
_INVALID_IN_NAME = re.compile(r"[^a-z0-9]+")
# Leaves room for a token and an index within Google's 63 characters.
_MAX_PREFIX_LENGTH = 36
_TOKEN_LENGTH = 10
_MAX_ACCOUNT_LENGTH = 30
_NAMESPACE = uuid.UUID("6a0c8a2e-6b7c-5d0f-9a61-6f1f5a0f7b11")


def label_value(text: str) -> str:
    """A text as the value of a label: unchanged if it is valid, else with a digest of it."""
    if _VALID_LABEL.fullmatch(text):
        return text
    readable = _INVALID_IN_LABEL.sub("-", text.lower())
    return f"{readable[: _MAX_LABEL_LENGTH - _DIGEST_LENGTH - 1]}-{_digest(text)}"


def instance_prefix(cluster: str) -> str:
    """The beginning of the names of all instances and disks of a cluster, and of no other's."""
    return f"{cluster_prefix(cluster)}--"


def account_id(cluster: str) -> str:
    """The id of a cluster's service account, of which Google allows 30 characters."""
    prefix = cluster_prefix(cluster)
    if len(prefix) <= _MAX_ACCOUNT_LENGTH:
        return prefix
    kept = prefix[: _MAX_ACCOUNT_LENGTH - _DIGEST_LENGTH - 1].rstrip("-")
    return f"{kept}-{_digest(cluster)}"


def cluster_prefix(cluster: str) -> str:
    """The name of a cluster as part of the names of its resources; no two clusters share it."""
    readable = _INVALID_IN_NAME.sub("-", cluster.lower()).strip("-")
    name = f"shoal-{readable}"
    if readable == cluster and len(name) <= _MAX_PREFIX_LENGTH:
        return name
    return f"{name[: _MAX_PREFIX_LENGTH - _DIGEST_LENGTH - 1].rstrip('-')}-{_digest(cluster)}"


def instance_names(cluster: str, token: str, role: Role, count: int, start: int = 0) -> list[str]:
    """The names of the instances of a launch. A repeated launch has the same names, so that Google
    refuses to create them twice."""
    launch = hashlib.sha256(token.encode()).hexdigest()[:_TOKEN_LENGTH]
    prefix = f"{instance_prefix(cluster)}{role[0]}{launch}"
    return [f"{prefix}-{index}" for index in range(start, start + count)]


def request_id(token: str, *parts: str) -> str:
    """The `requestId` that makes a repeated call idempotent; other parts are another request."""
    return str(uuid.uuid5(_NAMESPACE, "\0".join([token, *parts])))


def network_tag(cluster: str) -> str:
    """The network tag of a cluster's instances, which its firewall rules name."""
    return cluster_prefix(cluster)


def resource_prefix(cluster: str, network: str) -> str:
    """The beginning of the names of a cluster's resources in a network. Names are unique in the
    project, not in the network."""
    prefix = cluster_prefix(cluster)
    return prefix if network == "default" else f"{prefix}-{_digest(network)}"


def instance_tags(
    cluster: str, node_type: str, role: Role, token: str, launch_hash: str
) -> dict[str, str]:
    """The tags of an instance, before they are made labels."""
    return {
        tags.CLUSTER: cluster,
        tags.TOKEN: token,
        tags.RAY_NODE_NAME: f"ray-{cluster}-{role}",
        tags.RAY_CLUSTER_NAME: cluster,
        tags.RAY_NODE_KIND: role,
        tags.RAY_USER_NODE_TYPE: node_type,
        tags.RAY_NODE_STATUS: "waiting-for-ssh",
        tags.RAY_LAUNCH_CONFIG: launch_hash,
    }


def as_labels(values: Mapping[str, str]) -> dict[str, str]:
    """Tags as labels."""
    return {key: label_value(value) for key, value in values.items()}


def read_tags(labels: Mapping[str, str], real: Mapping[str, str]) -> dict[str, str]:
    """The tags of an instance: its labels, with the `real` values from its metadata where a label
    is only a digest of one."""
    return {key: _real(key, value, real) for key, value in labels.items()}


def _real(key: str, label: str, real: Mapping[str, str]) -> str:
    text = real.get(key)
    return text if text is not None and label_value(text) == label else label


def cluster_filter(cluster: str | None) -> str:
    """The filter for the instances of a cluster, or of every cluster."""
    if cluster is None:
        return f"labels.{tags.CLUSTER}:*"
    return f"labels.{tags.CLUSTER} = {label_value(cluster)}"


def metadata_items(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def metadata_values(items: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
    return {str(item["key"]): str(item.get("value", "")) for item in items or ()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
