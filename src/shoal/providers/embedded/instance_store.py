"""Embedded instances on disk: one directory each, with a record of what it is.

The record is written before anything runs in the directory, and the directory is removed last, so
the records list every instance that can have processes. Nothing here starts or ends a process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.core.atomic_write import write_atomically
from shoal.core.errors import TransientError
from shoal.core.file_lock import FileLock
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role

_log = logging.getLogger(__name__)

# Ray puts Unix sockets below its directory, and the system limits the length of their paths.
_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
# The longest name that Ray 2.60 uses for a socket is dash_TaskEventsHead; others may follow.
_SOCKET_NAME_BYTES = 24
_RAY_APPENDS_BYTES = (
    len("/session_2026-01-01_00-00-00_000000_4194304/sockets/") + _SOCKET_NAME_BYTES
)
_LOCK_SECONDS = 20.0
_RECORD_FILE = "instance.json"


@dataclass(frozen=True)
class InstanceRecord:
    """What is recorded of one embedded instance. `first_port` is 0 for a worker."""

    id: str
    cluster: str
    name: str
    node_type: str
    role: Role
    address: str
    created_at: float
    token: str
    ray_directory: str
    first_port: int


class InstanceStore:
    """The directory that holds all embedded instances of this user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, id: str) -> Path:
        """The directory of an instance: the home of its commands."""
        return self.root / id

    def records(self) -> list[InstanceRecord]:
        """All instances, oldest first. A directory without a readable record is left from a crash
        before anything could run in it; `sweep` removes it."""
        records = []
        for path in sorted(self.root.glob(f"*/{_RECORD_FILE}")):
            with suppress_and_log(_log, f"read {path}", FileNotFoundError, ValueError, TypeError):
                records.append(InstanceRecord(**json.loads(path.read_text())))
        return sorted(records, key=lambda r: (r.created_at, r.name))

    def add(self, record: InstanceRecord) -> None:
        """Create an instance's directories, and its record last."""
        directory = self.directory(record.id)
        directory.mkdir(parents=True, mode=0o700)
        Path(record.ray_directory, "tmp").mkdir(parents=True, mode=0o700)
        if record.role == "head":
            with open(self.token_path(record.id), "w", opener=_owner_only) as file:
                file.write(secrets.token_hex(32))
        write_atomically(directory / _RECORD_FILE, json.dumps(asdict(record), indent=1))

    def token_path(self, head_id: str) -> Path:
        """The file with the Ray token of the cluster that this head leads."""
        return self.directory(head_id) / "auth_token"

    def remove(self, record: InstanceRecord) -> None:
        """Remove an instance's directory. The record goes first, so that an instance is either
        listed with all its files or not at all; `sweep` removes what a crash leaves."""
        directory = self.directory(record.id)
        if not Path(record.ray_directory).is_relative_to(directory):
            shutil.rmtree(record.ray_directory, ignore_errors=True)
        (directory / _RECORD_FILE).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def sweep(self) -> None:
        """Remove directories without a record. Needs the lock, because `add` creates the directory
        before the record."""
        for directory in self.root.glob("*/"):
            if not (directory / _RECORD_FILE).exists():
                _log.info("removing %s, which has no record", directory)
                shutil.rmtree(directory, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock for adding and removing instances."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(self.root / ".lock") as lock:
            if not lock.acquire_within(_LOCK_SECONDS):
                raise TransientError(
                    "another shoal command is launching or terminating embedded instances",
                    why=f"it still held the lock after {_LOCK_SECONDS:.0f} s",
                    fix="try again when it has finished",
                )
            yield

    def ray_directory(self, id: str) -> str:
        """The directory for Ray's session: the instance's own, or a short one in /tmp if that
        path would be too long for a Unix socket."""
        directory = self.directory(id)
        if len(os.fsencode(str(directory))) + _RAY_APPENDS_BYTES <= _SOCKET_PATH_BYTES:
            return str(directory)
        return f"/tmp/shoal-{os.getuid()}-{id}"


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def new_id() -> str:
    """A new instance id."""
    return secrets.token_hex(4)


def free_addresses(records: Iterable[InstanceRecord], cluster: str) -> Iterator[str]:
    """Unused loopback addresses, all in one block of 254 per cluster. Empty when the block is
    full or no block is free."""
    clusters = {r.address: r.cluster for r in records}
    blocks = {int(address.split(".")[2]): owner for address, owner in clusters.items()}
    block = next((n for n, owner in blocks.items() if owner == cluster), None)
    if block is None:
        block = next((n for n in range(256) if n not in blocks), None)
    if block is None:
        return iter(())
    addresses = (f"127.77.{block}.{n}" for n in range(1, 255))
    return (address for address in addresses if address not in clusters)
