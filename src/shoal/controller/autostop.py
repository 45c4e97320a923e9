"""Gives the whole cluster back when nobody has used it for long enough."""

from __future__ import annotations

from shoal.controller.memory import Memory
from shoal.engine.gcs import Reading


def idle_seconds(reading: Reading, memory: Memory) -> float:
    """For how long nothing has run, waited or been on its way. A floor is a wish for machines, and
    does not count as use."""
    coming = memory.intents or any(node.on_the_way for node in memory.nodes.values())
    if reading.demand.requests or reading.demand.gangs or coming or not reading.nodes:
        return 0.0
    return min(node.idle_s for node in reading.nodes.values())


def is_due(after_s: float | None, reading: Reading, memory: Memory) -> bool:
    """Whether the cluster has been idle for as long as its file allows."""
    return after_s is not None and idle_seconds(reading, memory) >= after_s
