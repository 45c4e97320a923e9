"""Pinned host keys: the keys that a host may have, by the name under which they are pinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal.core.atomic_write import write_atomically

HostKeys = Mapping[str, Sequence[str]]


def read(file: Path) -> dict[str, list[str]]:
    """The keys in a file; none if it does not exist."""
    keys: dict[str, list[str]] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            name, _, key = line.partition(" ")
            if key:
                keys.setdefault(name, []).append(key)
    return keys


def write(file: Path, keys: HostKeys) -> None:
    """Replace the file with one that pins these keys and no others."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = (f"{name} {key}\n" for name, host_keys in keys.items() for key in host_keys)
    write_atomically(file, "".join(lines))


class HostKeyStore(Protocol):
    """The pinned host keys of a cluster."""

    def keys(self) -> HostKeys:
        """The keys that are pinned on this machine."""
        ...

    def add(self, keys: HostKeys) -> None:
        """Pin these keys too."""
        ...


class SharedHostKeys:
    """One file for all hosts. A host may be reinstalled and get another key, so keys that are added
    replace the pinned ones."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def keys(self) -> HostKeys:
        return read(self._file)

    def add(self, keys: HostKeys) -> None:
        if keys:
            write(self._file, {**read(self._file), **keys})


class HostKeysPerInstance:
    """One file for each instance, named after it. A pinned key stays: a key that is added may be
    the one-time key, which has been replaced since."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keys(self) -> HostKeys:
        # Not the temporary files that an interrupted write may leave.
        files = sorted(self._directory.glob("[!.]*")) if self._directory.is_dir() else []
        return {name: keys for file in files for name, keys in read(file).items()}

    def add(self, keys: HostKeys) -> None:
        for name, instance_keys in keys.items():
            if not (self._directory / name).exists():
                write(self._directory / name, {name: instance_keys})
