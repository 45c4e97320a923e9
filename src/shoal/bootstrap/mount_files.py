"""Lists the files of each file mount, as rsync would send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.remote.rsync_filters import rules, sent
from shoal.spec.cluster_spec import FilesSpec


@dataclass(frozen=True)
class MountFiles:
    """The files of one mount: their paths, if the mount is a directory, and their total size."""

    paths: tuple[str, ...]
    size: int


# The files of each mount, by its path on the node.
Manifest = Mapping[str, MountFiles]


def manifest(files: FilesSpec) -> Manifest:
    """The files of all mounts. A file that vanishes meanwhile is left out, as rsync does."""
    filter_rules = rules(files.rsync_exclude, files.rsync_filter)
    mounts = {}
    for remote_path, local_path in files.mounts.items():
        paths, size = [], 0
        if Path(local_path).is_dir():
            for path, entry in sent(Path(local_path), filter_rules):
                paths.append(path)
                if entry.is_file(follow_symlinks=False):
                    size += entry.stat(follow_symlinks=False).st_size
        mounts[remote_path] = MountFiles(tuple(paths), size)
    return mounts
