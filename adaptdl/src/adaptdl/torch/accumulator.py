"""Sums over all workers."""

from shoal.train.torch.accumulator import (
    Accumulator,
)

__all__ = [
    "Accumulator",
]
