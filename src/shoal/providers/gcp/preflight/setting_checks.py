"""Preflight checks of settings that would have no effect, or not the one that is meant. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.gcp import launch_request, lease, names
from shoal.providers.model import Finding
from shoal.providers.vm.unknown_settings import check_provider_settings
from shoal.spec.cluster_spec import ClusterSpec

_KNOWN_SETTINGS = (
    "availability_zone",
    "cache_stopped_nodes",
    "gcp_credentials",
    "max_run_duration",
    "project_id",
    "region",
    "service_account",
    "use_internal_ips",
)
_OS_LOGIN = "enable-oslogin"
_OTHER_WAYS = {"tpu": "use a machine type with TPUs: machineType: ct5lp-hightpu-1t"}


def check_settings(spec: ClusterSpec) -> list[Finding]:
    """All findings about settings."""
    unknown = check_provider_settings(spec, "GCP", _KNOWN_SETTINGS, _OTHER_WAYS)
    return [
        *unknown,
        *_check_max_run_duration(spec),
        *_check_os_login(spec),
        *_check_preemptible(spec),
    ]


def _check_preemptible(spec: ClusterSpec) -> list[Finding]:
    """Says which node types are launched in another way than the file has it."""
    return [
        Finding(
            "warning",
            f"{name} is launched as spot",
            why="preemptible is the older form, whose instances end after 24 hours",
            fix="scheduling: {provisioningModel: SPOT}",
            at=("node_types", name, "node_config", "scheduling"),
            check="preemptible",
        )
        for name, node_type in spec.node_types.items()
        if launch_request.scheduling(node_type.node_config).get("preemptible") is True
    ]


def _check_max_run_duration(spec: ClusterSpec) -> list[Finding]:
    try:
        lease.max_run_seconds(spec)
    except ConfigError as error:
        at = ("provider", "settings", "max_run_duration")
        return [Finding("error", error.what, error.why, error.fix, at)]
    return []


def _check_os_login(spec: ClusterSpec) -> list[Finding]:
    """Whether a node type turns OS Login on, where Shoal's own setting turns it off."""
    return [
        Finding(
            "error",
            f"{name} uses OS Login",
            why="its metadata has enable-oslogin: with it, instances ignore the SSH keys in their "
            "metadata",
            fix=f"metadata: {json.dumps(_without_os_login(node_type.node_config))}",
            at=("node_types", name, "node_config", "metadata"),
        )
        for name, node_type in spec.node_types.items()
        if _metadata(node_type.node_config).get(_OS_LOGIN, "").upper() == "TRUE"
    ]


def _metadata(config: Mapping[str, Any]) -> dict[str, str]:
    return names.metadata_values((config.get("metadata") or {}).get("items"))


def _without_os_login(config: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in _metadata(config).items() if key != _OS_LOGIN}
    return {"items": names.metadata_items(values)}
