"""The launches that this machine began, on its disk before the class is called. The classes have no
idempotency token: a tag shows which nodes a launch created, or else what is new does."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shoal.core.atomic_write import write_atomically
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Role

_log = logging.getLogger(__name__)

_MAX_RECORDS = 200


@dataclass(frozen=True)
class LaunchRecord:
    """`known` are the nodes that existed before, `ids` those that were created as far as is known.
    `returned` is whether the class has returned from the call."""

    token: str
    node_type: str
    role: Role
    count: int
    at: float
    known: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    returned: bool = False


class LaunchRecords:
    """The records in one file, the oldest first."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self, token: str) -> LaunchRecord | None:
        """The record of the launch with this token."""
        return self._all().get(token)

    def unfinished(self, role: Role, since: float) -> LaunchRecord | None:
        """The newest launch of a role that may have been interrupted since then."""
        records = [
            r for r in self._all().values() if r.role == role and not r.returned and r.at >= since
        ]
        return records[-1] if records else None

    def owners(self) -> dict[str, LaunchRecord]:
        """By node id, the launch that created it."""
        return {id: record for record in self._all().values() for id in record.ids}

    def write(self, record: LaunchRecord) -> None:
        """Record a launch, or what is now known of it."""
        records = {**self._all(), record.token: record}
        kept = list(records.values())[-_MAX_RECORDS:]
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self._file, json.dumps([asdict(r) for r in kept]))

    def forget(self, ids: Collection[str]) -> None:
        """Remove nodes that are gone: a class may use an id again."""
        records = self._all()
        changed = {
            token: replace(r, ids=tuple(id for id in r.ids if id not in ids))
            for token, r in records.items()
            if set(ids) & set(r.ids)
        }
        for record in changed.values():
            self.write(record)

    def _all(self) -> dict[str, LaunchRecord]:
        records: list[LaunchRecord] = []
        with suppress_and_log(_log, f"read {self._file}", FileNotFoundError, ValueError, TypeError):
            records = [LaunchRecord(**data) for data in json.loads(self._file.read_text())]
        return {r.token: replace(r, known=tuple(r.known), ids=tuple(r.ids)) for r in records}
