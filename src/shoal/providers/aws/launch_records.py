"""What this machine asked AWS for, written down before it asks: a help, never the truth.

AWS's listings run behind its launches by some seconds. With the intent at hand, who looks knows
that there is more to come; without it (on another laptop, after a lost disk) tags are enough to
find everything a little later.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from shoal.core.atomic_write import write_atomically
from shoal.core.clock import Clock

# After so long a listing shows what was launched, and what it does not show never was.
_LAG_SECONDS = 60.0
# A launch without an answer: the program was killed in the middle, and it may have had no effect.
_UNANSWERED_SECONDS = 10.0


@dataclass(frozen=True)
class Record:
    """One launch: when, with which one-time host key, and the instances it gave. The private half
    is kept too, since asking again with a token must be asking with the same words."""

    at: float
    host_key: str = ""
    private_key: str = field(default="", repr=False)
    instances: tuple[str, ...] = ()


class Journal:
    """The launches of one cluster, a file each."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock

    def intend(self, token: str, host_key: str, private_key: str = "") -> None:
        known = self.read(token) or Record(0.0)
        now = self._clock.now()
        self._write(token, Record(now, host_key, private_key, known.instances))

    def answered(self, token: str, instances: Sequence[str]) -> None:
        known = self.read(token) or Record(self._clock.now())
        self._write(token, replace(known, instances=(*known.instances, *instances)))

    def read(self, token: str) -> Record | None:
        try:
            data = json.loads((self.directory / f"{token}.json").read_text())
            return Record(**{**data, "instances": tuple(data["instances"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_complete(self, instances: set[str], tokens: set[str]) -> bool:
        """Whether a listing of these instances, from launches with these tokens, shows all that
        was launched from here lately."""
        for file in self.directory.glob("*.json"):
            record = self.read(file.stem)
            age = self._clock.now() - record.at if record else _LAG_SECONDS
            if record is None or age >= _LAG_SECONDS:
                continue
            if record.instances and not set(record.instances) <= instances:
                return False
            waiting = age < _UNANSWERED_SECONDS
            if not record.instances and waiting and file.stem not in tokens:
                return False
        return True

    def drop(self, token: str) -> None:
        """The wish came to nothing."""
        (self.directory / f"{token}.json").unlink(missing_ok=True)

    def _write(self, token: str, record: Record) -> None:
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(self.directory / f"{token}.json", json.dumps(asdict(record)))
