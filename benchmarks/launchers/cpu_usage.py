"""How much of this computer others used during a measurement. Times of programs that are bound
by the processors mean little without it."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from tests.simcloud.hosts import Host

_TICKS = os.sysconf("SC_CLK_TCK")
_WINDOW_SECONDS = 1.0
_QUIET_CORES = 0.3


class Meter:
    """Counts from when it is made."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self._hosts = tuple(hosts)
        self._began = time.monotonic()
        self._all = _busy_seconds()
        self._ours = self._our_seconds()

    def cores_of_others(self) -> float:
        """How many processors all but these hosts and this process kept busy, on average."""
        elapsed = time.monotonic() - self._began
        others = _busy_seconds() - self._all - (self._our_seconds() - self._ours)
        return max(0.0, others / elapsed)

    def _our_seconds(self) -> float:
        own = resource.getrusage(resource.RUSAGE_SELF)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        here = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        return here + sum(_seconds_of(pid) for host in self._hosts for pid in host.pids())


async def quiet(patience: float) -> None:
    """Return when this computer has little to do, or when patience ends."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        before = _busy_seconds()
        await asyncio.sleep(_WINDOW_SECONDS)
        if _busy_seconds() - before < _QUIET_CORES * _WINDOW_SECONDS:
            return


def _busy_seconds() -> float:
    """Processor time that anyone has used since this computer was switched on."""
    with Path("/proc/stat").open() as stat:
        user, nice, system, _idle, _waiting, *interrupts = map(int, stat.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS


def _seconds_of(pid: int) -> float:
    """Processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it ended while we looked, and is among someone's children now
    return sum(map(int, fields[11:15])) / _TICKS
