"""Collectives over any picklable value."""

from shoal.train.collective import (
    allreduce,
    allreduce_async,
    broadcast,
    initialize,
)

__all__ = [
    "allreduce",
    "allreduce_async",
    "broadcast",
    "initialize",
]
