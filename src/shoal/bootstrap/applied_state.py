"""What was last done to a machine, written on the machine itself.

Whoever comes next reads it there and skips what has not changed. A receipt that is missing or
unreadable means that nothing is known, and everything is done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shoal.core.errors import SetupError
from shoal.remote.runner import Runner, quote

_PATH = ".shoal/applied_state.json"
_SECONDS = 30.0

# Stands for the start's digest where Ray was stopped on purpose.
STOPPED = "stopped"

# Prints the receipt, or that there is none, on one line. What was written down does not count any
# more when what it was done on is gone: the arguments are places where something is mounted.
_READ = f"""
for place; do mountpoint -q "$place" || exec echo '{{}}'; done
cat {_PATH} 2>/dev/null || echo '{{}}'
"""


@dataclass(frozen=True)
class AppliedState:
    """Digests of the files, the setup and the start that a machine has been through, of the
    container in which all of that is, where there is one, and of what is mounted. Empty: not yet,
    or not any more."""

    files: str = ""
    setup: str = ""
    start: str = ""
    container: str = ""
    volumes: str = ""


def read_command(places: Sequence[str] = ()) -> str:
    """Prints the receipt of a machine that has something mounted at these places."""
    return quote(["sh", "-c", _READ, "sh", *places])


def parse(line: str) -> AppliedState:
    try:
        return AppliedState(**json.loads(line))
    except (ValueError, TypeError):
        return AppliedState()


async def write(runner: Runner, state: AppliedState) -> None:
    command = f"mkdir -p .shoal && cat > {_PATH}.new && mv {_PATH}.new {_PATH}"
    text = json.dumps(asdict(state)) + "\n"
    done = await runner.run(command, stdin=text.encode(), timeout=_SECONDS, skip_profile=True)
    if not done.ok:
        raise SetupError(
            "cannot write to the machine's disk",
            why=f"~/{_PATH} could not be made",
            fix="make room on it, then shoal up again",
            output=done.tail,
        )


def digest(value: Any) -> str:
    """A short digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
