"""Notices that packages were installed or removed while a process runs."""

from __future__ import annotations

import sys
from pathlib import Path

_DIRECTORIES = ("site-packages", "dist-packages")


class InstalledPackages:
    """The packages of this interpreter, as they were when this object was created. Installing or
    removing one changes its directory."""

    def __init__(self) -> None:
        self._modified_at = _modified_at()

    def have_changed(self) -> bool:
        return _modified_at() != self._modified_at


def _modified_at() -> dict[Path, int | None]:
    directories = [Path(entry) for entry in sys.path if Path(entry).name in _DIRECTORIES]
    return {directory: _mtime(directory) for directory in directories}


def _mtime(directory: Path) -> int | None:
    try:
        return directory.stat().st_mtime_ns
    except OSError:
        return None
