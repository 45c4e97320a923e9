"""Finds and ends every process of an embedded machine, however it was started or orphaned.

A machine's processes carry its id in their environment. A program may clear or overwrite that,
so the descendants of a marked process belong to the machine as well.
"""

from __future__ import annotations

import contextlib
import os

import psutil

from shoal.core.clock import Clock
from shoal.core.errors import TransientError

MARK = "SHOAL_MACHINE"
# Time for a person's own programs to tidy up. Ray's daemons would take longer, to no avail.
_GRACE_SECONDS = 1.0
_KILL_SECONDS = 10.0


def marked(id: str) -> dict[str, str]:
    """The environment that makes a process part of a machine."""
    return {MARK: id}


def of_machines(ids: set[str]) -> dict[str, list[psutil.Process]]:
    """The live processes of each machine, this program and its parents left out."""
    own = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    live: dict[int, psutil.Process] = {}
    parents: dict[int, int] = {}
    owner: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            if process.pid in own or process.status() == psutil.STATUS_ZOMBIE:
                continue
            parents[process.pid] = process.ppid()
            live[process.pid] = process
            mark = process.environ().get(MARK, "")
        except psutil.Error:
            continue  # it ended while we looked, or it is another user's
        if mark:
            owner[process.pid] = mark

    found: dict[str, list[psutil.Process]] = {id: [] for id in ids}
    for pid, process in live.items():
        ancestor = pid
        while ancestor not in owner and ancestor in parents:
            ancestor = parents[ancestor]
        if (machine := owner.get(ancestor, "")) in found:
            found[machine].append(process)
    return found


async def end(ids: set[str], clock: Clock) -> None:
    """Return when no process of these machines is left: asked first, then killed. One that was
    seen once is followed to its end, even when its parents are gone and its mark is lost."""
    deadline = clock.monotonic() + _GRACE_SECONDS
    asked: set[psutil.Process] = set()
    left: set[psutil.Process] = set()
    while left := _alive(left | _all(ids)):
        late = clock.monotonic() > deadline
        for process in left:
            if late or process not in asked:
                asked.add(process)
                _signal(process, kill=late)
        if clock.monotonic() > deadline + _KILL_SECONDS:
            raise TransientError(
                f"{len(left)} processes do not end: "
                + ", ".join(str(process.pid) for process in left),
                why="they survived SIGKILL, which means they wait for a device",
                fix="try again; if they stay, the machine needs a restart",
            )
        await clock.sleep(0.05)


def _all(ids: set[str]) -> set[psutil.Process]:
    return {process for group in of_machines(ids).values() for process in group}


def _alive(processes: set[psutil.Process]) -> set[psutil.Process]:
    # is_running() compares start times too, so a reused number is not mistaken for the process
    return {p for p in processes if p.is_running() and _status(p) != psutil.STATUS_ZOMBIE}


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def _signal(process: psutil.Process, *, kill: bool) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        if kill:
            process.kill()
        else:
            process.terminate()
