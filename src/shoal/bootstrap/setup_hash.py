"""The setup hash: equal for nodes on which bootstrap would do the same before Ray starts, so that
an image of one of them can replace these steps on another. Pure."""

from __future__ import annotations

from dataclasses import asdict

from shoal.core.node_phase import Role
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.hashes import short_hash

# Changes when an image of an earlier version must no longer be used.
_VERSION = 1


def setup_hash(spec: ClusterSpec, node_type: str, role: Role, files_digest: str) -> str:
    """The setup hash of nodes of this type and role; empty if there is nothing that an image could
    replace. The file mounts are sent to every node, and count only if a command names one of
    them."""
    setup = spec.setup_for(node_type, role)
    commands = (*setup.initialization_commands, *setup.setup_commands)
    if not commands and setup.container is None:
        return ""
    container = None if setup.container is None else asdict(setup.container)
    return short_hash(
        [
            _VERSION,
            node_type,
            spec.auth.ssh_user,
            setup.initialization_commands,
            container,
            setup.setup_commands,
            spec.shoal.environment,
            files_digest if _names_a_mount(spec, commands) else "",
        ]
    )


def _names_a_mount(spec: ClusterSpec, commands: tuple[str, ...]) -> bool:
    """Whether a command names a path on the node that files are sent to. A path in the home
    directory counts however the command writes the home directory."""
    paths = [*spec.files.mounts, *spec.files.cluster_synced]
    names = {path.removeprefix("~").strip("/") for path in paths}
    return any(not name or name in command for command in commands for name in names)
