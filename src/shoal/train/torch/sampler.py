"""Which samples a worker takes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass

import torch
from torch.utils.data import Sampler

from shoal.train import env


def pass_order(length: int, shuffle: bool, number: int) -> list[int]:
    """The order of the samples in pass `number` over the data: the same on every worker."""
    if not shuffle:
        return list(range(length))
    generator = torch.Generator()
    generator.manual_seed(number)
    return torch.randperm(length, generator=generator).tolist()


class ElasticSampler(Sampler[int]):
    """Splits what is left of a pass among the workers. Used by itself it pads, as AdaptDL's does:
    every worker gets the same number of samples, and some samples come twice."""

    def __init__(self, dataset: Sized, shuffle: bool = True) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.num_replicas = env.num_replicas()
        self.rank = env.replica_rank()
        self.epoch = 0
        self.index = 0

    def set_epoch(self, epoch: int, index: int = 0) -> None:
        """Continue in `epoch` after `index` samples of all workers together."""
        self.epoch = epoch
        self.index = index

    def __iter__(self) -> Iterator[int]:
        length = len(self.dataset)
        number, start = divmod(self.index, length)
        order = pass_order(length, self.shuffle, _pass_number(self.epoch, number))
        local = order[start + self.rank :: self.num_replicas]
        if len(local) < len(self):
            local.append(order[self.rank])
        return iter(local)

    def __len__(self) -> int:
        length = len(self.dataset)
        return -(-(length - self.index % length) // self.num_replicas)


def _pass_number(epoch: int, number: int) -> int:
    return epoch * 1_000_003 + number


@dataclass(frozen=True)
class StepPlan:
    """How the samples from `start` to the end of a pass are cut into steps, micro-batches and
    workers. Only the last step is uneven. A rest with fewer samples than workers is added to the
    step before, so every worker has samples in every step, unless the whole pass has too few."""

    length: int
    start: int
    size: int
    local_batch: int
    micro_batches: int = 1
    drop_last: bool = False

    @property
    def batch(self) -> int:
        return self.local_batch * self.micro_batches * self.size

    def __len__(self) -> int:
        whole, rest = divmod(max(0, self.length - self.start), self.batch)
        if self.drop_last or rest == 0 or (whole > 0 and rest < self.size):
            return whole
        return whole + 1

    def samples(self, step: int) -> int:
        """How many samples all workers together take in that step."""
        if step < len(self) - 1 or self.drop_last:
            return self.batch
        return self.length - self.start - step * self.batch

    def end(self, step: int) -> int:
        """The position in the pass after that step."""
        return self.start + step * self.batch + self.samples(step)

    def share(self, step: int, rank: int) -> tuple[int, int]:
        """The range of a worker's samples in that step."""
        begin = self.start + step * self.batch
        whole, rest = divmod(self.samples(step), self.size)
        first = begin + rank * whole + min(rank, rest)
        return first, first + whole + (rank < rest)

    def micro_shares(self, step: int, rank: int) -> list[tuple[int, int]]:
        """The worker's samples in that step, one range per forward and backward. Empty if the pass
        has fewer samples than there are workers."""
        first, end = self.share(step, rank)
        count = end - first
        parts = min(self.micro_batches, -(-count // self.local_batch))
        ranges = []
        for part in range(parts):
            size = count // parts + (part < count % parts)
            ranges.append((first, first + size))
            first += size
        return ranges
