"""Mounts the volumes and shared file systems that a cluster file asks for, before any other step.
The script `mount_volumes` does the work on the node, in one command."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from shoal.bootstrap.scripts.mount_volumes import EXIT_MOUNT_ERROR
from shoal.core.errors import SetupError
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.remote.runner import Runner, capture, quote
from shoal.remote.scripts import read_script
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# One volume or file system, as JSON that the script reads.
MountRequest = Mapping[str, Any]

# Formatting takes seconds, whatever the size of the disk; installing an NFS client takes minutes.
_SECONDS = 900.0
_AS_ROOT = "$(command -v sudo > /dev/null && echo sudo -n || echo env)"


def mount_requests(
    spec: ClusterSpec, provider: Provider, instance: Instance
) -> tuple[MountRequest, ...]:
    """What must be mounted on a node."""
    owner = {"owner": instance.user}
    requests: list[MountRequest] = []
    for path, volume in spec.volumes_for(instance.node_type).items():
        settings = {key: value for key, value in asdict(volume).items() if key != "node_types"}
        requests.append({"kind": "volume", "path": path, **settings, **owner})
    for path, mount in spec.mounts_for(instance.node_type).items():
        if not path.startswith("/"):
            continue  # an S3 URL: the instance's IAM role gives access, nothing is mounted
        common = {"path": path, "read_only": mount.read_only, **owner}
        if mount.s3:
            requests.append({"kind": "s3", "bucket": mount.s3, **common})
        elif efs_source := provider.capabilities.file_system_source:
            source = efs_source(mount.efs)
            # Only where it is set, so that it changes no other node's applied state.
            tls = {"tls": True} if mount.tls else {}
            requests.append({"kind": "efs", "source": source, **common, **tls})
    return tuple(requests)


def mount_points(requests: Sequence[MountRequest]) -> list[str]:
    return [str(request["path"]) for request in requests]


async def mount(runner: Runner, requests: Sequence[MountRequest], node: str) -> None:
    """Mount everything, and raise `SetupError` if something cannot be mounted."""
    source = read_script("shoal.bootstrap.scripts", "mount_volumes.py").encode()
    command = f"{_AS_ROOT} {quote(['python3', '-', json.dumps(requests)])}"
    _log.info("%s: mounting %s", node, ", ".join(mount_points(requests)))
    try:
        done, output = await capture(runner, command, stdin=source, timeout=_SECONDS)
    except TimeoutError:
        raise SetupError(
            "could not mount the volumes", why=f"not done after {_SECONDS:.0f} s", node=node
        ) from None
    if done.code == EXIT_MOUNT_ERROR and output:
        raise SetupError(**json.loads(output[-1]), node=node)
    if not done.ok:
        raise SetupError(
            "could not mount the volumes",
            why="mounting needs Python 3, and root through sudo without a password",
            fix="let ssh_user use sudo without a password, or remove shoal.volumes and mounts",
            node=node,
            output=done.tail,
        )
