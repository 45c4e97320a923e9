"""What exactly the file mounts consist of, as rsync would send it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.remote.rsync_filters import rules, sent
from shoal.spec.cluster_spec import FilesSpec


@dataclass(frozen=True)
class Parcel:
    """One mount: the paths in it, if it is a tree, and the size of all its files."""

    paths: tuple[str, ...]
    size: int


# By the path on the node.
Manifest = Mapping[str, Parcel]


def manifest(files: FilesSpec) -> Manifest:
    """What is sent. A file that vanishes meanwhile is left out, as rsync does."""
    of = rules(files.rsync_exclude, files.rsync_filter)
    found = {}
    for there, here in files.mounts.items():
        paths, size = [], 0
        if Path(here).is_dir():
            for path, entry in sent(Path(here), of):
                paths.append(path)
                if entry.is_file(follow_symlinks=False):
                    size += entry.stat(follow_symlinks=False).st_size
        found[there] = Parcel(tuple(paths), size)
    return found
