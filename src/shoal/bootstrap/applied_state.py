"""Digests of what was last applied to a node, stored on the node itself.

The next bootstrap reads them there and skips what has not changed. If the file is missing or
unreadable, every step runs again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shoal.core.errors import SetupError
from shoal.remote.runner import Runner
from shoal.remote.scripts import script_command

_PATH = ".shoal/applied_state.json"
_SECONDS = 30.0

# Takes the place of the start digest on a node whose Ray was stopped on purpose.
STOPPED = "stopped"


@dataclass(frozen=True)
class AppliedState:
    """Digests of the files, setup commands and start commands that were applied to a node, of the
    container that they were applied in, if any, and of its volumes. Empty: not applied."""

    files: str = ""
    setup: str = ""
    start: str = ""
    container: str = ""
    volumes: str = ""


def to_text(state: AppliedState) -> str:
    """The content of the file."""
    return json.dumps(asdict(state)) + "\n"


def read_command(mount_points: Sequence[str] = ()) -> str:
    """A command that prints the applied state of a node that has volumes at these mount points."""
    return script_command("shoal.bootstrap.scripts", "read_applied_state.sh", _PATH, *mount_points)


def parse(line: str) -> AppliedState:
    """The applied state from what `read_command` printed; empty if that cannot be parsed."""
    try:
        return AppliedState(**json.loads(line))
    except (ValueError, TypeError):
        return AppliedState()


async def write(runner: Runner, state: AppliedState) -> None:
    """Store the applied state on a node."""
    command = f"mkdir -p .shoal && cat > {_PATH}.new && mv {_PATH}.new {_PATH}"
    done = await runner.run(
        command, stdin=to_text(state).encode(), timeout=_SECONDS, skip_profile=True
    )
    if not done.ok:
        raise SetupError(
            "cannot write to the node's disk",
            why=f"could not write ~/{_PATH}",
            fix="free some space on it\nshoal up CLUSTER",
            output=done.tail,
        )


def digest(value: Any) -> str:
    """A short digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
