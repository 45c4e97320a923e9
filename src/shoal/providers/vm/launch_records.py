"""Local records of launches, written before each call that launches. A help, never the truth.

A cloud's listings lag behind its launches by some seconds. The records tell which instances a
listing must still show. Without them (on another laptop, after a lost disk) the tags are enough to
find everything a little later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from shoal.core.atomic_write import write_atomically
from shoal.core.clock import Clock
from shoal.core.logs import suppress_and_log

_log = logging.getLogger(__name__)

# After this time a listing shows every launched instance; what it does not show does not exist.
_LISTING_LAG_SECONDS = 60.0
# For launches without a recorded response: the program was killed in between, and the call may
# not have reached the cloud.
_UNANSWERED_SECONDS = 10.0


@dataclass(frozen=True)
class LaunchRecord:
    """One launch: its time, its one-time host key and the instances it created. The private key is
    kept because a repeated call with the same token must have the same user data."""

    at: float
    host_key: str = ""
    private_key: str = field(default="", repr=False)
    instances: tuple[str, ...] = ()


class LaunchRecords:
    """The launches of one cluster, one file per launch token."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock

    def record_intent(self, token: str, host_key: str, private_key: str = "") -> None:
        """Record a launch before its call is made."""
        known = self.read(token) or LaunchRecord(0.0)
        self._write(token, LaunchRecord(self._clock.now(), host_key, private_key, known.instances))

    def record_instances(self, token: str, instances: Sequence[str]) -> None:
        """Record the instances that a launch created."""
        known = self.read(token) or LaunchRecord(self._clock.now())
        self._write(token, replace(known, instances=(*known.instances, *instances)))

    def read(self, token: str) -> LaunchRecord | None:
        try:
            data = json.loads((self.directory / f"{token}.json").read_text())
            return LaunchRecord(**{**data, "instances": tuple(data["instances"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_complete(self, instances: set[str], tokens: set[str]) -> bool:
        """Whether a listing with these instances, from launches with these tokens, shows all
        instances launched recently from this machine."""
        return self.recent_instances() <= instances and all(
            record.instances
            or self._clock.now() - record.at >= _UNANSWERED_SECONDS
            or token in tokens
            for token, record in self._recent().items()
        )

    def recent_instances(self) -> set[str]:
        """The instances launched recently from this machine."""
        return {id for record in self._recent().values() for id in record.instances}

    def _recent(self) -> dict[str, LaunchRecord]:
        """The launches, by token, that a listing may not show yet."""
        records = {file.stem: self.read(file.stem) for file in self.directory.glob("*.json")}
        now = self._clock.now()
        return {
            token: record
            for token, record in records.items()
            if record is not None and now - record.at < _LISTING_LAG_SECONDS
        }

    def delete(self, token: str) -> None:
        """Forget a launch that created nothing."""
        (self.directory / f"{token}.json").unlink(missing_ok=True)

    def _write(self, token: str, record: LaunchRecord) -> None:
        with suppress_and_log(_log, "record a launch", OSError):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self.directory / f"{token}.json", json.dumps(asdict(record)))
