"""A sampler for scripts that are started again with another number of workers.

Its state is how many samples of the pass all workers together have used, so it can be loaded by a
group of any size. Every worker iterates over its own part of what is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from shoal.train.torch.sampler import pass_order


def left_of_pass(samples: int, shuffle: bool, seed: int, epoch: int, used: int) -> list[int]:
    """The samples of a pass in their order, without those that were used."""
    return pass_order(samples, shuffle, seed * 1_000_003 + epoch)[used:]


class ElasticSampler(Sampler[int]):
    """For DistributedDataParallel under torchrun or `shoal train`: in place of DistributedSampler.

    Call `advance(samples)` after each step with the samples that all workers used in it, save
    `state_dict()` with the model, and `load_state_dict` it when the script starts. No sample is
    padded: at the end of a pass some workers have one sample less, unless `drop_last`.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self.dataset = dataset
        self.num_replicas = num_replicas or int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0)) if rank is None else rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.used = 0  # samples of this pass, by all workers together

    def set_epoch(self, epoch: int) -> None:
        """Begin a pass. The pass that is under way goes on."""
        if epoch != self.epoch:
            self.epoch, self.used = epoch, 0

    def advance(self, samples: int) -> None:
        """All workers together have used so many more samples of this pass."""
        self.used = min(len(self.dataset), self.used + samples)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "used": self.used, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.used, self.seed = state["epoch"], state["used"], state["seed"]

    def __iter__(self) -> Iterator[int]:
        left = left_of_pass(len(self.dataset), self.shuffle, self.seed, self.epoch, self.used)
        return iter(left[self.rank : self._end(len(left)) : self.num_replicas])

    def __len__(self) -> int:
        left = self._end(len(self.dataset) - self.used)
        return max(0, -(-(left - self.rank) // self.num_replicas))

    def _end(self, left: int) -> int:
        return left - left % self.num_replicas if self.drop_last else left
