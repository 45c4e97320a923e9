"""Ending what a killed test left behind, and nothing else.

Every process of a cloud carries its owner in its environment. All else that a cloud is made of
(namespaces, mounts, links) has no name on this computer and goes with its processes. A sweep
therefore ends marked processes whose owner is gone, and leaves the clouds of others alone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_VARIABLE = "SHOAL_SIMCLOUD_OWNER"


def mark() -> dict[str, str]:
    """Return the environment that marks a process as part of a cloud of this process."""
    return {_VARIABLE: f"{os.getpid()}:{_started(os.getpid())}"}


def sweep() -> list[int]:
    """Kill what owners that no longer live have left, and return the process ids."""
    killed = []
    for pid, owner in marked().items():
        owner_pid, _, started = owner.partition(":")
        if _started(int(owner_pid)) != started:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.append(pid)
    return killed


def marked() -> dict[int, str]:
    """Return every marked process and the owner it names, as `pid:start time`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        for variable in variables:
            name, _, value = variable.partition(b"=")
            if name == _VARIABLE.encode():
                found[int(entry.name)] = value.decode()
    return found


def _started(pid: int) -> str | None:
    """Return when a process began: with its id, a name that is not used twice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
