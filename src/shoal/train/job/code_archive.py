"""The user's working directory as a zip file: made on the laptop, unpacked on each node."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.core.errors import ConfigError

MAX_BYTES = 500_000_000
# Where the packages are, beside the code.
LIBRARY = ".shoal-lib"
_SKIPPED = {LIBRARY, ".git", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache", "node_modules"}
# Written after the code: what is newer was saved by the script.
_MARKER = ".shoal-unpacked"


def pack(directory: Path, packages: Sequence[Path] = ()) -> bytes:
    """The files below a directory, without version control, caches and virtual environments, and
    packages that the workers import before any other of their name."""
    buffer = io.BytesIO()
    total = 0
    roots = [(directory, Path()), *((p, Path(LIBRARY, p.name)) for p in packages)]
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
    ) as archive:
        for root, target in roots:
            for path in _files(root):
                total += path.stat().st_size
                if total > MAX_BYTES:
                    raise ConfigError(
                        f"the working directory {directory} is larger than {MAX_BYTES >> 20} MB",
                        why="it is copied to every node",
                        fix="keep data elsewhere, and pass a smaller --working-dir",
                    )
                archive.write(path, target / path.relative_to(root))
    return buffer.getvalue()


def _files(directory: Path) -> Iterator[Path]:
    for root, directories, files in os.walk(directory):
        directories[:] = sorted(d for d in directories if not _is_skipped(Path(root) / d))
        for name in sorted(files):
            path = Path(root) / name
            if path.is_file():  # not a socket, or a link to nothing
                yield path


def extract(archive: bytes, directory: Path) -> None:
    """Unpack, unless this code is there already: an agent that comes again must not delete what
    the script has saved beside it."""
    digest = hashlib.sha256(archive).hexdigest()
    marker = directory / _MARKER
    if marker.exists() and marker.read_text() == digest:
        return
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(temporary)
    for path in temporary.rglob("*"):
        os.utime(path)
    (temporary / _MARKER).write_text(digest)
    shutil.rmtree(directory, ignore_errors=True)
    temporary.replace(directory)


def changed_files(directory: Path) -> list[Path]:
    """The files that were written after the code was unpacked."""
    marker = directory / _MARKER
    if not marker.exists():
        return []
    unpacked = marker.stat().st_mtime_ns
    return [
        path
        for path in sorted(directory.rglob("*"))
        if path.is_file()
        and path.stat().st_mtime_ns > unpacked
        and not any(part in _SKIPPED for part in path.relative_to(directory).parts)
    ]


def _is_skipped(path: Path) -> bool:
    return path.name in _SKIPPED or (path / "pyvenv.cfg").exists()
