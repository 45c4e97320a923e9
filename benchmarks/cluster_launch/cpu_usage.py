"""How much CPU other programs used during a measurement. Times of CPU-bound programs mean little
without it."""

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


class CpuMeter:
    """Measures from its creation."""

    def __init__(self, hosts: Iterable[Host]) -> None:
        self._hosts = tuple(hosts)
        self._started = time.monotonic()
        self._total = _busy_seconds()
        self._own = self._own_seconds()

    def other_cores(self) -> float:
        """How many cores everything but these hosts and this process kept busy, on average."""
        elapsed = time.monotonic() - self._started
        other_seconds = _busy_seconds() - self._total - (self._own_seconds() - self._own)
        return max(0.0, other_seconds / elapsed)

    def _own_seconds(self) -> float:
        own = resource.getrusage(resource.RUSAGE_SELF)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_and_children = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        return own_and_children + sum(
            _process_seconds(pid) for host in self._hosts for pid in host.pids()
        )


async def wait_until_quiet(max_wait: float) -> None:
    """Return when this machine is nearly idle, or after `max_wait` seconds."""
    deadline = time.monotonic() + max_wait
    while time.monotonic() < deadline:
        before = _busy_seconds()
        await asyncio.sleep(_WINDOW_SECONDS)
        if _busy_seconds() - before < _QUIET_CORES * _WINDOW_SECONDS:
            return


def _busy_seconds() -> float:
    """CPU time that all processes have used since boot."""
    with Path("/proc/stat").open() as stat:
        user, nice, system, _idle, _waiting, *interrupts = map(int, stat.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) / _TICKS


def _process_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have exited."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has exited; its time counts as its parent's
    return sum(map(int, fields[11:15])) / _TICKS
