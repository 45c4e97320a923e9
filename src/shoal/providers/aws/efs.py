"""EFS file systems: looked up by name, and the NFS source that a node mounts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.providers.aws import tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_ID = re.compile(r"fs-[0-9a-f]+")


class FileSystems:
    """The EFS file systems that a file names, and the ids of those that were looked up."""

    def __init__(self, aws: AwsClient) -> None:
        self._aws = aws
        self._ids: dict[str, str] = {}

    async def look_up(self, spec: ClusterSpec) -> list[Finding]:
        """Look up the ids of named file systems; returns a finding for each missing one."""
        names = {
            m.efs: path for path, m in spec.shoal.mounts.items() if m.efs and not _is_id(m.efs)
        }
        if not names:
            return []
        records = await self._aws.paginate("efs", "describe_file_systems", "FileSystems")
        ids = {_name(record): str(record["FileSystemId"]) for record in records}
        self._ids.update({name: ids[name] for name in names if name in ids})
        return [
            _missing(name, path, sorted(filter(None, ids)), self._aws.region)
            for name, path in names.items()
            if name not in ids
        ]

    def source(self, name: str) -> str:
        """The NFS source to mount. A name that was not looked up is used as it is: operations that
        only observe the cluster do not need its id."""
        id = self._ids.get(name, name)
        suffix = ".cn" if self._aws.region.startswith("cn-") else ""
        return f"{id}.efs.{self._aws.region}.amazonaws.com{suffix}:/"

    def with_ids(self, spec: ClusterSpec) -> ClusterSpec:
        """The spec with ids instead of names, for the head, which may not look them up."""
        mounts = {
            path: replace(mount, efs=self._ids.get(mount.efs, mount.efs))
            for path, mount in spec.shoal.mounts.items()
        }
        return replace(spec, shoal=replace(spec.shoal, mounts=mounts))


def _is_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def _name(record: dict[str, Any]) -> str:
    return tags.as_dict(record.get("Tags")).get("Name", "")


def _missing(name: str, path: str, existing: Sequence[str], region: str) -> Finding:
    return Finding(
        "error",
        f"there is no EFS file system named {name} in {region}",
        why=f"the region has {', '.join(existing)}"
        if existing
        else "the region has none with a name",
        fix="correct the name, or use the id, fs-...",
        at=("shoal", "mounts", path),
    )
