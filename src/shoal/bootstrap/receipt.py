"""What was last done to a machine, written on the machine itself.

Whoever comes next reads it there and skips what has not changed. A receipt that is missing or
unreadable means that nothing is known, and everything is done again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from shoal.errors import SetupError
from shoal.remote.base import Runner

_PATH = ".shoal/receipt.json"
_SECONDS = 30.0

# Stands for the start's digest where Ray was stopped on purpose.
STOPPED = "stopped"

# Prints the receipt, or that there is none, on one line.
READ = f"cat {_PATH} 2>/dev/null || echo '{{}}'"


@dataclass(frozen=True)
class Receipt:
    """Digests of the files, the setup and the start that a machine has been through, and of the
    container in which all of that is, where there is one. Empty: not yet, or not any more."""

    files: str = ""
    setup: str = ""
    start: str = ""
    container: str = ""


def parse(line: str) -> Receipt:
    try:
        return Receipt(**json.loads(line))
    except (ValueError, TypeError):
        return Receipt()


async def write(runner: Runner, receipt: Receipt) -> None:
    command = f"mkdir -p .shoal && cat > {_PATH}.new && mv {_PATH}.new {_PATH}"
    text = json.dumps(asdict(receipt)) + "\n"
    done = await runner.run(command, stdin=text.encode(), timeout=_SECONDS)
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
