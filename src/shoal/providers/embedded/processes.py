"""Finds and ends every process of an embedded machine, however it was started or orphaned.

A machine's processes carry its id in their environment. A program may clear or overwrite that,
so the descendants of a marked process belong to the machine as well.
"""

from __future__ import annotations

import os

import psutil

from shoal.clock import Clock
from shoal.errors import TransientError

MARK = "SHOAL_MACHINE"
_GRACE_SECONDS = 4.0
_KILL_SECONDS = 10.0


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
    """Return when no process of these machines is left: asked first, then killed."""
    deadline = clock.monotonic() + _GRACE_SECONDS
    asked: set[int] = set()
    while processes := _all(ids):
        late = clock.monotonic() > deadline
        for process in processes:
            if late or process.pid not in asked:
                asked.add(process.pid)
                _signal(process, kill=late)
        if clock.monotonic() > deadline + _KILL_SECONDS:
            raise TransientError(
                f"{len(processes)} processes do not end: "
                + ", ".join(str(p.pid) for p in processes),
                why="they survived SIGKILL, which means they wait for a device",
                fix="try again; if they stay, the machine needs a restart",
            )
        await clock.sleep(0.1)


def _all(ids: set[str]) -> list[psutil.Process]:
    return [process for group in of_machines(ids).values() for process in group]


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
    except psutil.Error:
        pass  # gone already, which is what we want
