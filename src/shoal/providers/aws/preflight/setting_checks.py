"""Preflight checks of settings that would have no effect, or not the one that is meant. Pure."""

from __future__ import annotations

from shoal.providers.model import Finding
from shoal.providers.vm.unknown_settings import check_provider_settings
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
    unknown = check_provider_settings(spec, "AWS", _KNOWN_SETTINGS, _OTHER_WAYS)
    return [*unknown, *_check_session_manager(spec)]


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
