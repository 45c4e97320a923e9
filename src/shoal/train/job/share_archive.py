"""Copies the directory that the workers of a node share to a node that joins later: scripts let
rank 0 download a data set, and the others read it."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path

_log = logging.getLogger(__name__)

# The archive is held in memory. Larger data belongs on a shared file system: --share.
MAX_BYTES = 2_000_000_000


def pack(directory: Path) -> bytes:
    """The files below the directory; empty if there are none or too many."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if not files or size > MAX_BYTES:
        if files:
            _log.warning("%s has %d bytes and is not copied to new nodes", directory, size)
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in files:
            archive.add(path, path.relative_to(directory))
    return buffer.getvalue()


def extract(archive: bytes, directory: Path) -> None:
    """Unpack what the directory does not have."""
    if not archive:
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files.getmembers():
            if not (directory / member.name).exists():
                files.extract(member, directory)
