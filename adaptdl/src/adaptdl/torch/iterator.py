"""Token sequences for truncated back-propagation through time. Takes token numbers, so torchtext is
not needed."""

from shoal.train.torch.iterator import AdaptiveBPTTIterator

__all__ = ["AdaptiveBPTTIterator"]
