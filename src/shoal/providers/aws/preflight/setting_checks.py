"""Preflight checks of settings that would have no effect, or not the one that is meant. Pure."""

from __future__ import annotations

import difflib

from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_KNOWN_SETTINGS = (
    "availability_zone",
    "aws_credentials",
    "cache_stopped_nodes",
    "head_role",
    "permissions_boundary",
    "region",
    "security_group",
    "use_internal_ips",
)
# Settings of Ray that have no effect here, and what to do instead.
_OTHER_WAYS = {
    "cloudwatch": "install and configure the CloudWatch agent in setup_commands",
    "key_pair": "name the key pair in node_config: {KeyName: ...}",
}
_SESSION_MANAGER = "AmazonSSMManagedInstanceCore"


def check_settings(spec: ClusterSpec) -> list[Finding]:
    """All findings about settings."""
    return [*_check_provider_settings(spec), *_check_session_manager(spec)]


def _check_provider_settings(spec: ClusterSpec) -> list[Finding]:
    findings = []
    for name in spec.provider.settings:
        if name in _KNOWN_SETTINGS:
            continue
        similar = difflib.get_close_matches(name, _KNOWN_SETTINGS, n=1)
        fix = _OTHER_WAYS.get(name) or (f"rename it: {similar[0]}" if similar else "")
        findings.append(
            Finding(
                "warning",
                f"provider.{name} is ignored",
                why="the AWS provider has no such setting",
                fix=fix or f"remove {name}",
                at=("provider", "settings", name),
            )
        )
    return findings


def _check_session_manager(spec: ClusterSpec) -> list[Finding]:
    """Whether instances that are reached by their ids have the role that Session Manager needs."""
    if not spec.auth.ssh_proxy_use_node_id:
        return []
    return [
        Finding(
            "warning",
            f"Session Manager may not reach nodes of type {name}",
            why="ssh_proxy_use_node_id connects by instance id, and the node type names no "
            f"instance profile with the policy {_SESSION_MANAGER}",
            fix=f"IamInstanceProfile: {{Name: a profile with {_SESSION_MANAGER}}}",
            at=("node_types", name, "node_config"),
        )
        for name, node_type in spec.node_types.items()
        if not node_type.node_config.get("IamInstanceProfile")
        and "LaunchTemplate" not in node_type.node_config
    ]
