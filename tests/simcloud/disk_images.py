"""What the disks behind AMIs hold: CreateImage copies the disk of an instance's host, and hosts of
instances that are launched from the AMI start with the copy."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class System:
    """What is on the disk of an AMI: whom the key pair of an instance lets in, and whether Ray is
    installed."""

    user: str = "ubuntu"
    has_ray: bool = True


class DiskImages:
    """The copies, in a directory each, by AMI."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._disks: dict[str, Path] = {}
        self._systems: dict[str, System] = {}

    def disk(self, image: str) -> Path | None:
        """The directory of an AMI's disk; None for one that has nothing beyond the usual."""
        return self._disks.get(image)

    def system(self, image: str) -> System:
        return self._systems.get(image, System())

    def add(self, image: str, disk: Path, system: System | None = None) -> None:
        """Have a directory of the test's own behind an AMI."""
        self._disks[image], self._systems[image] = disk, system or System()

    def copy(self, image: str, layers: Mapping[str, Path], source: str) -> None:
        """Copy everything that a running host has changed, `layers` by their paths on the host,
        over what its own AMI, `source`, has changed."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="simcloud-images-"))
        disk = self._directory / image
        if base := self._disks.get(source):
            subprocess.run(["cp", "-a", str(base), str(disk)], check=True)
        for path, layer in layers.items():
            target = disk / path.strip("/")
            if layer.suffix == ".own":  # it is all that the host has there
                shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True, exist_ok=True)
            for deleted in _whiteouts(layer):
                there = target / deleted.relative_to(layer)
                if there.is_dir() and not there.is_symlink():
                    shutil.rmtree(there)
            # A file that changes meanwhile is copied as it is then, as in a snapshot.
            command = ["cp", "-a", "--remove-destination", f"{layer}/.", str(target)]
            subprocess.run(command, check=False)
        self._disks[image], self._systems[image] = disk, self.system(source)

    def remove(self, image: str) -> None:
        disk = self._disks.pop(image, None)
        if disk is not None and self._directory is not None and self._directory in disk.parents:
            shutil.rmtree(disk, ignore_errors=True)

    def close(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _whiteouts(layer: Path) -> list[Path]:
    """What an overlay shows as deleted: it marks it by a device with the number 0."""
    found = subprocess.run(
        ["find", str(layer), "-type", "c"], check=False, capture_output=True, text=True
    )
    return [Path(line) for line in found.stdout.splitlines()]
