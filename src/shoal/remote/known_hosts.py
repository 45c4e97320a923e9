"""Pinned host keys: which keys a machine may show, by the name it is pinned under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal.core.atomic_write import write_atomically

HostKeys = Mapping[str, Sequence[str]]


def read(file: Path) -> dict[str, list[str]]:
    """What is pinned in a file; nothing in one that is not there."""
    found: dict[str, list[str]] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            name, _, key = line.partition(" ")
            if key:
                found.setdefault(name, []).append(key)
    return found


def write(file: Path, keys: HostKeys) -> None:
    """Have a file pin these and nothing else. It is replaced as a whole."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(file, "".join(f"{name} {key}\n" for name, own in keys.items() for key in own))


class HostKeyStore(Protocol):
    """All that is pinned for a cluster."""

    def keys(self) -> HostKeys:
        """What is known here."""
        ...

    def add(self, keys: HostKeys) -> None:
        """Know machines by these keys from now on."""
        ...


class SharedHostKeys:
    """A host_keys of machines that have been there before, and may be set up anew: then they have
    another key, and what is taken counts."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def keys(self) -> HostKeys:
        return read(self._file)

    def add(self, keys: HostKeys) -> None:
        if keys:
            write(self._file, {**read(self._file), **keys})


class HostKeysPerInstance:
    """A host_keys of machines that are made for the cluster, each in a file of its name. What is
    known already stays: a one-time key that is taken may have been changed since."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keys(self) -> HostKeys:
        files = sorted(self._directory.glob("*")) if self._directory.is_dir() else []
        return {name: keys for file in files for name, keys in read(file).items()}

    def add(self, keys: HostKeys) -> None:
        for name, own in keys.items():
            if not (self._directory / name).exists():
                write(self._directory / name, {name: own})
