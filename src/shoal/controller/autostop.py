"""Gives the whole cluster back when nobody has used it for long enough."""

from __future__ import annotations

from shoal.controller.memory import Memory
from shoal.engine.gcs import Reading
from shoal.providers.base import IN_USE
from shoal.remote.process import run_process

_SECONDS = 20.0
# Whether a process on this machine was started in a person's session. $0 is the variable that
# says so.
_SESSIONS = r"""
if [ -d /proc/self ]; then
  grep -qszxF "$0" /proc/[0-9]*/environ
else
  ps -axEww -o command= | grep -qF " $0 "
fi
"""


class Autostop:
    """Knows since when nobody can have used the cluster."""

    def __init__(self) -> None:
        self._used_at = float("-inf")

    def is_due(self, after_s: float | None, reading: Reading, memory: Memory, now: float) -> bool:
        """Whether the cluster has been idle for as long as its file allows, as far as Ray's nodes
        show it."""
        if after_s is None or now - self._used_at < after_s:
            return False
        return idle_seconds(reading, memory) >= after_s

    def saw_use(self, now: float) -> None:
        """A program that asks for nothing, or a person, was there after all."""
        self._used_at = now


def idle_seconds(reading: Reading, memory: Memory) -> float:
    """For how long nothing has run, waited or been on its way. A floor is a wish for machines, and
    does not count as use."""
    coming = memory.intents or any(node.on_the_way for node in memory.nodes.values())
    if reading.demand.requests or reading.demand.gangs or coming or not reading.nodes:
        return 0.0
    return min(node.idle_s for node in reading.nodes.values())


async def has_session(gcs_address: str) -> bool:
    """Whether what a person runs on this head, by `exec`, `submit` or `attach`, still does."""
    command = ["sh", "-c", _SESSIONS, f"{IN_USE}={gcs_address}"]
    try:
        return (await run_process(command, timeout=_SECONDS)).ok
    except TimeoutError:
        return True  # nobody is thrown out because this machine is busy
