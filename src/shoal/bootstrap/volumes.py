"""Gives a machine the volumes and shared file systems that its file asks for, before anything is
put on it. The work itself is done there, by `disk_hand`, in one command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

from shoal.bootstrap.scripts.mount_volumes import TROUBLE
from shoal.core.errors import SetupError
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.remote.runner import Runner, capture, quote
from shoal.spec.cluster_spec import ClusterSpec

MountRequest = Mapping[str, Any]

# Formatting takes seconds, however large the disk; installing what mounts NFS may take minutes.
_SECONDS = 900.0
_AS_ROOT = "$(command -v sudo > /dev/null && echo sudo -n || echo env)"


def mount_requests(
    spec: ClusterSpec, provider: Provider, instance: Instance
) -> tuple[MountRequest, ...]:
    """What a machine is to have, as data that the hand over there reads."""
    owner = {"owner": instance.user}
    found: list[MountRequest] = []
    for where, volume in spec.volumes_for(instance.node_type).items():
        plain = {key: value for key, value in asdict(volume).items() if key != "node_types"}
        found.append({"kind": "volume", "where": where, **plain, **owner})
    for where, mount in spec.mounts_for(instance.node_type).items():
        if not where.startswith("/"):
            continue  # its role is all that it takes
        common = {"where": where, "read_only": mount.read_only, **owner}
        if mount.s3:
            found.append({"kind": "s3", "bucket": mount.s3, **common})
        elif efs_source := provider.capabilities.file_system_source:
            source = efs_source(mount.efs)
            found.append({"kind": "efs", "source": source, **common})
    return tuple(found)


def places(wanted: Sequence[MountRequest]) -> list[str]:
    """Where something must be mounted."""
    return [str(wish["where"]) for wish in wanted]


async def have(runner: Runner, wanted: Sequence[MountRequest], node: str) -> None:
    """Return when everything is mounted. Raises what stands in the way."""
    source = resources.files("shoal.bootstrap.scripts").joinpath("mount_volumes.py").read_bytes()
    command = f"{_AS_ROOT} {quote(['python3', '-', json.dumps(wanted)])}"
    try:
        done, printed = await capture(runner, command, stdin=source, timeout=_SECONDS)
    except TimeoutError:
        raise SetupError(
            "the volumes are not ready", why=f"after {_SECONDS:.0f} s", node=node
        ) from None
    if done.code == TROUBLE and printed:
        raise SetupError(**json.loads(printed[-1]), node=node)
    if not done.ok:
        raise SetupError(
            "the volumes cannot be looked after",
            why="that takes root, by sudo without a password, and Python 3",
            fix="let ssh_user use sudo without a password, or take out shoal.volumes and mounts",
            node=node,
            output=done.tail,
        )
