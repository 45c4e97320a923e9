"""Data-parallel training."""

from shoal.train.torch.parallel import (
    AdaptiveDataParallel,
)

__all__ = [
    "AdaptiveDataParallel",
]
