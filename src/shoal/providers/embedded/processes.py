"""Finds and ends every process of an embedded instance, however it was started or orphaned.

An instance's processes carry its id in their environment. A program may clear or overwrite that,
so the descendants of a marked process belong to the instance as well.
"""

from __future__ import annotations

import logging
import os

import psutil

from shoal.core.clock import Clock
from shoal.core.errors import TransientError
from shoal.core.logs import suppress_and_log
from shoal.core.own_commands import COMMAND_VARIABLE

_log = logging.getLogger(__name__)

INSTANCE_VARIABLE = "SHOAL_INSTANCE"
# Time for the user's programs to clean up. Ray's daemons would take longer, for no benefit.
_GRACE_SECONDS = 1.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.05


def process_environment(id: str) -> dict[str, str]:
    """The environment that makes a process part of an instance."""
    return {INSTANCE_VARIABLE: id}


def processes_of(ids: set[str], *, with_commands: bool = True) -> dict[str, list[psutil.Process]]:
    """The live processes of each instance, without this program and its parents, and without
    Shoal's own commands unless `with_commands`."""
    excluded = {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    live: dict[int, psutil.Process] = {}
    parents: dict[int, int] = {}
    marked: dict[int, str] = {}
    for process in psutil.process_iter():
        try:
            if process.pid in excluded or process.status() == psutil.STATUS_ZOMBIE:
                continue
            parents[process.pid] = process.ppid()
            live[process.pid] = process
            environment = process.environ()
        except psutil.Error:
            continue  # it has ended, or it belongs to another user
        if COMMAND_VARIABLE in environment and not with_commands:
            marked[process.pid] = ""
        elif id := environment.get(INSTANCE_VARIABLE, ""):
            marked[process.pid] = id

    processes: dict[str, list[psutil.Process]] = {id: [] for id in ids}
    for pid, process in live.items():
        ancestor = pid
        while ancestor not in marked and ancestor in parents:
            ancestor = parents[ancestor]
        if (id := marked.get(ancestor, "")) in processes:
            processes[id].append(process)
    return processes


async def end(ids: set[str], clock: Clock, *, with_commands: bool = True) -> None:
    """End all processes of these instances, by SIGTERM and then SIGKILL, and return when none is
    left. A process that was seen once is followed to its end, even if its parents have ended and
    its environment is lost. `with_commands` as in `processes_of`."""
    deadline = clock.monotonic() + _GRACE_SECONDS
    signalled: set[psutil.Process] = set()
    remaining: set[psutil.Process] = set()
    while remaining := _alive(remaining | _all_processes(ids, with_commands)):
        kill = clock.monotonic() > deadline
        for process in remaining:
            if kill or process not in signalled:
                signalled.add(process)
                _signal(process, kill=kill)
        if clock.monotonic() > deadline + _KILL_SECONDS:
            raise TransientError(
                f"{len(remaining)} processes do not end: "
                + ", ".join(str(process.pid) for process in remaining),
                why="they survived SIGKILL, so they are waiting for a device",
                fix="try again; if they remain, restart this machine",
            )
        await clock.sleep(_POLL_SECONDS)
    if signalled:
        _log.info("ended %d processes of instances %s", len(signalled), ", ".join(sorted(ids)))


def _all_processes(ids: set[str], with_commands: bool) -> set[psutil.Process]:
    processes = processes_of(ids, with_commands=with_commands)
    return {process for group in processes.values() for process in group}


def _alive(processes: set[psutil.Process]) -> set[psutil.Process]:
    # is_running() also compares start times, so a reused pid is not taken for the process
    return {p for p in processes if p.is_running() and _status(p) != psutil.STATUS_ZOMBIE}


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def _signal(process: psutil.Process, *, kill: bool) -> None:
    with suppress_and_log(_log, f"signal process {process.pid}", psutil.NoSuchProcess):
        if kill:
            process.kill()
        else:
            process.terminate()
