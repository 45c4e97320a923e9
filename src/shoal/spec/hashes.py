"""Short fingerprints that decide what a changed cluster file means for nodes that are up.

A changed launch hash means another machine, a changed files hash that files must be sent. The
launch hash reads nothing but the spec, so the head computes the same one as the laptop. Machines
carry it for as long as they live: what goes into it must not change from one version to the next.
What else was done to a machine is in the receipt on it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError
from shoal.remote.rsync_filters import Rules, rules, sent
from shoal.spec.cluster_spec import ClusterSpec, FilesSpec


def launch_hash(spec: ClusterSpec, node_type: str) -> str:
    """What a machine of this type is made from: its node_config, who may log in, and the volumes
    that come with it."""
    parts = [spec.node_types[node_type].node_config, spec.auth.ssh_user]
    new = [
        [v.device, v.size, v.type, v.iops, v.throughput, v.keep]
        for v in spec.volumes_for(node_type).values()
        if v.size
    ]
    return _hash([*parts, new] if new else parts)


def files_hash(files: FilesSpec) -> str:
    """What is sent to the nodes, and where to: paths, kinds, permissions and contents, of all
    that the excludes leave. Times do not count, nor where on this machine the files are."""
    content = _Content()
    of = rules(files.rsync_exclude, files.rsync_filter)
    mounts = [[there, content.tree(here, of)] for there, here in sorted(files.mounts.items())]
    return _hash(mounts)


class _Content:
    """Digests of trees. A file that two mounts share is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def tree(self, here: str, of: Rules) -> list[Any]:
        """The path itself, or all in it when it is a directory, as rsync would send it."""
        root = Path(here)
        try:
            info = root.stat()
            if stat.S_ISDIR(info.st_mode):
                found = [
                    [path, *self._one(entry.path, entry.stat(follow_symlinks=False))]
                    for path, entry in sent(root, of)
                ]
                return [*self._one(here, info), *sorted(found)]
            # A single file is sent under its own name, which a pattern may exclude.
            return [] if of.excludes(root.name, False) else self._one(here, info)
        except OSError as error:
            raise ConfigError(
                f"file_mounts: {error.filename or here} cannot be read",
                why=(error.strerror or str(error)).lower(),
            ) from None

    def _one(self, path: str, info: os.stat_result) -> list[Any]:
        kind, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode)
        if kind == stat.S_IFLNK:
            return ["link", os.fsencode(Path(path).readlink()).hex()]
        if kind == stat.S_IFREG:
            return ["file", mode, self._digest(path, info)]
        return [stat.filemode(info.st_mode)[0], mode]

    def _digest(self, path: str, info: os.stat_result) -> str:
        identity = (info.st_dev, info.st_ino)
        if identity not in self._known:
            digest = hashlib.sha256()
            with Path(path).open("rb", buffering=0) as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            self._known[identity] = digest.hexdigest()
        return self._known[identity]


def _hash(value: Any) -> str:
    """Lower-case letters and digits, short enough for a cloud's tag or label."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()[:20]
    return base64.b32encode(digest).decode().lower()
