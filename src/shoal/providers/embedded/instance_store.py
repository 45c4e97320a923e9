"""Embedded machines on disk: one directory each, and the record that says what it is.

The record is written before anything runs in the directory, and the directory goes last, so
whatever is found here is all there is. Nothing in this module starts or ends a process.
"""

from __future__ import annotations

import contextlib
import json
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
from shoal.core.node_phase import Role

# Ray puts Unix sockets below its directory, and the system limits the length of their paths.
_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
_RAY_APPENDS_BYTES = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_LOCK_SECONDS = 20.0


@dataclass(frozen=True)
class Record:
    """What is known of one embedded machine."""

    id: str
    cluster: str
    name: str
    node_type: str
    role: Role
    address: str
    created_at: float
    token: str
    ray_directory: str
    port_base: int


class Store:
    """The directory that holds all embedded machines of this user."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, id: str) -> Path:
        return self.root / id

    def records(self) -> list[Record]:
        """All machines, oldest first. A directory whose record cannot be read was left by a
        crash in its very first moment, before anything could run in it; `sweep` takes it."""
        found = []
        for path in sorted(self.root.glob("*/machine.json")):
            with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
                found.append(Record(**json.loads(path.read_text())))
        return sorted(found, key=lambda r: (r.created_at, r.name))

    def add(self, record: Record) -> None:
        directory = self.directory(record.id)
        directory.mkdir(parents=True, mode=0o700)
        Path(record.ray_directory, "tmp").mkdir(parents=True, mode=0o700)
        if record.role == "head":
            with open(self.token_path(record.id), "w", opener=_owner_only) as file:
                file.write(secrets.token_hex(32))
        write_atomically(directory / "machine.json", json.dumps(asdict(record), indent=1))

    def token_path(self, head_id: str) -> Path:
        """Where the secret that lets a process into this head's cluster is kept."""
        return self.directory(head_id) / "auth_token"

    def remove(self, record: Record) -> None:
        """Remove a machine's directory. The record goes first, so that a machine is either
        wholly listed or not at all; what a crash leaves behind then, `sweep` takes."""
        directory = self.directory(record.id)
        if not Path(record.ray_directory).is_relative_to(directory):
            shutil.rmtree(record.ray_directory, ignore_errors=True)
        (directory / "machine.json").unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def sweep(self) -> None:
        """Remove directories without a record. Only under the lock: `add` makes the directory
        before the record."""
        for directory in self.root.glob("*/"):
            if not (directory / "machine.json").exists():
                shutil.rmtree(directory, ignore_errors=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the right to add or remove machines: two commands at once take turns."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(self.root / ".lock") as lock:
            if not lock.acquire_within(_LOCK_SECONDS):
                raise TransientError(
                    "another shoal command is creating or ending embedded machines",
                    why=f"its lock was still held after {_LOCK_SECONDS:.0f} s",
                    fix="try again when it is done",
                )
            yield

    def ray_directory(self, id: str) -> str:
        """Where the machine's Ray keeps its session: inside the machine's own directory, or,
        when that path is too long for a Unix socket, in a short one."""
        inside = self.directory(id)
        if len(os.fsencode(str(inside))) + _RAY_APPENDS_BYTES <= _SOCKET_PATH_BYTES:
            return str(inside)
        return f"/tmp/shoal-{os.getuid()}-{id}"


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def new_id() -> str:
    return secrets.token_hex(4)


def free_addresses(records: Iterable[Record], cluster: str) -> Iterator[str]:
    """Loopback addresses that no machine has, all in one row of 254 for each cluster. None are
    left when the row is full, or all rows are taken."""
    taken = {r.address: r.cluster for r in records}
    rows = {int(a.split(".")[2]): c for a, c in taken.items()}
    row = next((n for n, c in rows.items() if c == cluster), None)
    if row is None:
        row = next((n for n in range(256) if n not in rows), None)
    if row is None:
        return iter(())
    return (f"127.77.{row}.{n}" for n in range(1, 255) if f"127.77.{row}.{n}" not in taken)
