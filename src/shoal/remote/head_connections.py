"""The SSH connections from a head to the hosts of its cluster, as commands that run on a host. They
outlive the controller that opened them, and the key."""

from __future__ import annotations

from shoal.remote.scripts import read_script, script_command

_SCRIPTS = "shoal.remote.scripts"
_LIBRARY = "head_directory.sh"
_CLOSE = "close_connections.sh"


def note_command(owner: str) -> str:
    """A command by which the head of this cluster has a host note the connection that runs it."""
    return script_command(_SCRIPTS, "note_connection.sh", owner, libraries=[_LIBRARY])


def close_command(owner: str) -> str:
    """A command that closes, on the head, its connections to all hosts, and on any other host the
    noted one. It removes what was kept for them, prints nothing and always succeeds."""
    return script_command(_SCRIPTS, _CLOSE, owner, libraries=[_LIBRARY])


def close_script() -> str:
    """The script behind `close_command`, which takes the owner as its argument."""
    return read_script(_SCRIPTS, _LIBRARY) + read_script(_SCRIPTS, _CLOSE)
