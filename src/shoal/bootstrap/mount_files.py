"""The files of a cluster's file mounts: their list and their hash, with excludes applied by rsync
itself. Sends nothing."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError
from shoal.remote.rsync import list_files
from shoal.remote.runner import Filters
from shoal.spec.cluster_spec import FilesSpec
from shoal.spec.hashes import short_hash


@dataclass(frozen=True)
class MountFiles:
    """One file mount: the paths in it, if it is a directory, and the total size of its files."""

    paths: tuple[str, ...]
    size: int


# The files of each mount, by its path on the node.
Manifest = Mapping[str, MountFiles]


def manifest(files: FilesSpec) -> Manifest:
    """The files of all mounts. A file that is deleted meanwhile is left out, as rsync does."""
    filters = _filters(files)
    mounts = {}
    for target, source in files.mounts.items():
        paths, size = [], 0
        if Path(source).is_dir():
            for path in list_files(Path(source), filters):
                try:
                    info = Path(source, path).lstat()
                except FileNotFoundError:
                    continue
                paths.append(path)
                size += info.st_size if stat.S_ISREG(info.st_mode) else 0
        mounts[target] = MountFiles(tuple(paths), size)
    return mounts


def files_hash(files: FilesSpec) -> str:
    """A hash of what is sent to the nodes and where to: paths, file types, permissions and
    contents of all files that are not excluded. Modification times do not count, nor the paths on
    this machine."""
    contents, filters = _Contents(), _filters(files)
    return short_hash(
        [
            [target, contents.of_mount(Path(source), filters)]
            for target, source in sorted(files.mounts.items())
        ]
    )


def _filters(files: FilesSpec) -> Filters:
    return Filters(files.rsync_exclude, files.rsync_filter)


class _Contents:
    """The parts of a hash. A file that is in two mounts is read once."""

    def __init__(self) -> None:
        self._digests: dict[tuple[int, int], str] = {}

    def of_mount(self, source: Path, filters: Filters) -> list[Any]:
        """What rsync sends for `source`: a file, or all files of a directory."""
        try:
            info = source.stat()
            paths = list_files(source, filters)
            if not stat.S_ISDIR(info.st_mode):
                return self._of_file(source, info) if paths else []
            entries = [
                [path, *self._of_file(source / path, (source / path).lstat())] for path in paths
            ]
            return [*self._of_file(source, info), *sorted(entries)]
        except OSError as error:
            raise ConfigError(
                f"file_mounts: {error.filename or source} cannot be read",
                why=(error.strerror or str(error)).lower(),
            ) from None

    def _of_file(self, path: Path, info: os.stat_result) -> list[Any]:
        file_type, mode = stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode)
        if file_type == stat.S_IFLNK:
            return ["link", os.fsencode(path.readlink()).hex()]
        if file_type == stat.S_IFREG:
            return ["file", mode, self._digest(path, info)]
        return [stat.filemode(info.st_mode)[0], mode]

    def _digest(self, path: Path, info: os.stat_result) -> str:
        inode = (info.st_dev, info.st_ino)
        if inode not in self._digests:
            digest = hashlib.sha256()
            with path.open("rb", buffering=0) as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            self._digests[inode] = digest.hexdigest()
        return self._digests[inode]
