"""File systems of EFS: found by name, and named as machines mount them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.providers.aws import tags
from shoal.providers.aws.client import AwsClient
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_ID = re.compile(r"fs-[0-9a-f]+")


class FileSystems:
    """The file systems that a file names, as far as they have been looked up."""

    def __init__(self, aws: AwsClient) -> None:
        self._aws = aws
        self._ids: dict[str, str] = {}

    async def look_up(self, spec: ClusterSpec) -> list[Finding]:
        """Learn the ids of those that are named; what is not there is found here."""
        wanted = {m.efs: w for w, m in spec.shoal.mounts.items() if m.efs and not _is_id(m.efs)}
        if not wanted:
            return []
        answer = await self._aws.call("efs", "describe_file_systems", MaxItems=100)
        found = {_name(record): str(record["FileSystemId"]) for record in answer["FileSystems"]}
        self._ids.update({name: found[name] for name in wanted if name in found})
        return [
            _missing(name, where, sorted(filter(None, found)), self._aws.region)
            for name, where in wanted.items()
            if name not in found
        ]

    def source(self, name: str) -> str:
        """What a machine mounts. A name that was not looked up stays one: whoever only looks at the
        cluster's machines need not know it."""
        id = self._ids.get(name, name)
        ending = ".cn" if self._aws.region.startswith("cn-") else ""
        return f"{id}.efs.{self._aws.region}.amazonaws.com{ending}:/"

    def by_id(self, spec: ClusterSpec) -> ClusterSpec:
        """The spec with ids for names, for whoever may not ask."""
        mounts = {
            where: replace(mount, efs=self._ids.get(mount.efs, mount.efs))
            for where, mount in spec.shoal.mounts.items()
        }
        return replace(spec, shoal=replace(spec.shoal, mounts=mounts))


def _is_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def _name(record: dict[str, Any]) -> str:
    return tags.as_dict(record.get("Tags")).get("Name", "")


def _missing(name: str, where: str, there: Sequence[str], region: str) -> Finding:
    return Finding(
        "error",
        f"there is no file system named {name} in {region}",
        why=f"those there are: {', '.join(there)}" if there else "there is none with a name",
        fix="correct the name, or give its id, fs-...",
        at=("shoal", "mounts", where),
    )
