"""What the disks behind AMIs hold: CreateImage copies the disk of an instance's host, and hosts of
instances that are launched from the AMI start with the copy."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

# The parts of a host's disk that users change. Others are the computer's own, and large.
_PARTS = ("home", "var/lib/shoal-instance")


class DiskImages:
    """The copies, in a directory each, by AMI."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._disks: dict[str, Path] = {}

    def disk(self, image: str) -> Path | None:
        """The directory of an AMI's disk; None for one that has nothing beyond the usual."""
        return self._disks.get(image)

    def add(self, image: str, disk: Path) -> None:
        """Have a directory of the test's own behind an AMI."""
        self._disks[image] = disk

    def copy(self, image: str, root: Path) -> None:
        """Copy the disk of a running host, whose root is seen at `root`."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="simcloud-images-"))
        disk = self._directory / image
        for part in _PARTS:
            source = root / part
            if source.exists():
                target = disk / part
                target.parent.mkdir(parents=True, exist_ok=True)
                # A file that changes meanwhile is copied as it is then, as in a snapshot.
                subprocess.run(
                    ["cp", "-a", "--one-file-system", str(source), str(target)], check=False
                )
        self._disks[image] = disk

    def remove(self, image: str) -> None:
        disk = self._disks.pop(image, None)
        if disk is not None and self._directory is not None and self._directory in disk.parents:
            shutil.rmtree(disk, ignore_errors=True)

    def close(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
