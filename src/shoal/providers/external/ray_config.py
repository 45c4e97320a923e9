"""A spec as the dictionary that Ray's node providers expect, and what they change in it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.core.node_phase import Role
from shoal.spec.cluster_spec import AuthSpec, ClusterSpec, ProviderSpec

# The tags that Ray's launcher sets and its classes rely on.
KIND = "ray-node-type"
NODE_TYPE = "ray-user-node-type"
NAME = "ray-node-name"
STATUS = "ray-node-status"
LAUNCH_CONFIG = "ray-launch-config"
# Ours: the request that a node was launched for.
TOKEN = "shoal-token"

_AUTH_KEYS = ("ssh_user", "ssh_private_key", "ssh_public_key", "ssh_proxy_command")


def provider_config(spec: ClusterSpec) -> dict[str, Any]:
    """The `provider` section, as the file has it."""
    return {"type": spec.provider.type, **copy.deepcopy(dict(spec.provider.settings))}


def auth_config(auth: AuthSpec) -> dict[str, Any]:
    """The `auth` section."""
    values = {key: getattr(auth, key) for key in _AUTH_KEYS}
    return {key: value for key, value in values.items() if value is not None}


def cluster_config(spec: ClusterSpec) -> dict[str, Any]:
    """The whole cluster file, for `bootstrap_config` and its kind."""
    setup = spec.head_setup
    return {
        "cluster_name": spec.cluster_name,
        "max_workers": spec.scaling.max_workers,
        "upscaling_speed": spec.scaling.upscaling_speed,
        "idle_timeout_minutes": spec.scaling.idle_timeout_s / 60,
        "provider": provider_config(spec),
        "auth": auth_config(spec.auth),
        "docker": {},
        "available_node_types": {
            name: {
                "node_config": copy.deepcopy(dict(node_type.node_config)),
                "resources": dict(node_type.resources),
                "labels": dict(node_type.labels),
                "min_workers": node_type.min_workers,
                "max_workers": node_type.max_workers,
            }
            for name, node_type in spec.node_types.items()
        },
        "head_node_type": spec.head_node_type,
        "file_mounts": dict(spec.files.mounts),
        "cluster_synced_files": list(spec.files.cluster_synced),
        "rsync_exclude": list(spec.files.rsync_exclude),
        "rsync_filter": list(spec.files.rsync_filter),
        "initialization_commands": list(setup.initialization_commands),
        "setup_commands": [],
        "head_setup_commands": list(setup.setup_commands),
        "worker_setup_commands": [],
        "head_start_ray_commands": list(setup.start_commands),
        "worker_start_ray_commands": [],
        "no_restart": spec.no_restart,
        "metadata": dict(spec.metadata),
    }


def with_config(spec: ClusterSpec, config: Mapping[str, Any]) -> ClusterSpec:
    """The spec with what a class has changed: its provider section, the login, and each node type's
    `node_config` and resources. All else is Shoal's."""
    types = config.get("available_node_types") or {}
    settings = {k: v for k, v in (config.get("provider") or {}).items() if k != "type"}
    auth = {k: v for k, v in (config.get("auth") or {}).items() if k in _AUTH_KEYS and v}
    return replace(
        spec,
        provider=ProviderSpec(spec.provider.type, settings or dict(spec.provider.settings)),
        auth=replace(spec.auth, **auth),
        node_types={
            name: replace(
                node_type,
                node_config={
                    # What the class has filled in for the head only, such as its role.
                    **(dict(config.get("head_node") or {}) if name == spec.head_node_type else {}),
                    **(_section(types, name, "node_config") or dict(node_type.node_config)),
                },
                resources=dict(node_type.resources) or _amounts(_section(types, name, "resources")),
            )
            for name, node_type in spec.node_types.items()
        },
    )


def launch_tags(spec: ClusterSpec, node_type: str, role: Role, token: str) -> dict[str, str]:
    """The tags of a new node."""
    node_config = json.dumps(
        dict(spec.node_types[node_type].node_config), sort_keys=True, default=str
    )
    return {
        KIND: role,
        NODE_TYPE: node_type,
        NAME: f"ray-{spec.cluster_name}-{role}",
        STATUS: "uninitialized",
        LAUNCH_CONFIG: hashlib.sha1(node_config.encode()).hexdigest(),
        TOKEN: token,
    }


def _section(types: Mapping[str, Any], name: str, key: str) -> dict[str, Any]:
    return dict((types.get(name) or {}).get(key) or {})


def _amounts(resources: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(amount) for name, amount in resources.items()}
