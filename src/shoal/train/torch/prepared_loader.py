"""A script's own DataLoader, over all workers of a job.

Its batch size is the batch of all workers together. Its sampler decides the order of a pass: every
worker draws the same order, with the same seed, and takes its own part of each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from shoal.train.torch.data import AdaptiveDataLoader
from shoal.train.torch.sampler import ElasticSampler, StepPlan

_KEPT = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers",
    "pin_memory_device",
)  # fmt: skip


class PreparedDataLoader(AdaptiveDataLoader):
    """A loader whose batch may grow, and whose order is that of a sampler."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        batch_size = _batch_size(loader)
        options = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
        options = {name: value for name, value in options.items() if value not in (None, "")}
        if not loader.num_workers:
            options.pop("persistent_workers", None)
        shuffle, self._order_sampler = _order_of(loader.sampler)
        super().__init__(
            loader.dataset, batch_size, shuffle=shuffle, drop_last=loader.drop_last, **options
        )

    def grow_batch(
        self, max: int, per_worker: tuple[int, int] | None = None, accumulate: bool | None = None
    ) -> None:
        """Allow a step to have up to `max` samples on all workers together, when training gets
        further with it in the same time; the learning rate follows. `per_worker` bounds the samples
        of one worker in one forward. A worker whose part is larger makes several forwards
        before a step (`accumulate`; by default only where the bounds require it)."""
        self._elastic.limit_batch(max, per_worker, accumulate)

    def _pass_length(self, index: int) -> int:
        return len(self._order_sampler) if self._order_sampler is not None else len(self.dataset)

    def _pass_order(self, plan: StepPlan, pass_number: int) -> list[int]:
        if self._order_sampler is None:
            return super()._pass_order(plan, pass_number)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(pass_number)
            sampler: Any = self._order_sampler
            if getattr(sampler, "generator", None) is not None:
                sampler.generator.manual_seed(pass_number)
            return [int(index) for index in sampler]


def _batch_size(loader: DataLoader[Any]) -> int:
    if loader.batch_size is None:
        if type(loader.batch_sampler) is not BatchSampler and loader.batch_sampler is not None:
            raise TypeError(
                "a batch_sampler of its own decides which samples form a batch, so the batch "
                "cannot follow the number of workers; pass batch_size, and a sampler for the order"
            )
        raise TypeError("the loader does not form batches; pass batch_size")
    return loader.batch_size


def _order_of(sampler: Sampler[int] | Any) -> tuple[bool, Any]:
    """Whether to shuffle, and the sampler if it is not one of torch's simple ones."""
    if isinstance(sampler, DistributedSampler):  # splits the data itself: only its order counts
        return sampler.shuffle, None
    if isinstance(sampler, ElasticSampler):
        return sampler.shuffle, None
    if type(sampler) is SequentialSampler:
        return False, None
    if type(sampler) is RandomSampler and not sampler.replacement:
        covers_all = len(sampler) == len(sampler.data_source)
        return covers_all, None if covers_all else sampler
    if not hasattr(sampler, "__len__"):
        raise TypeError(f"{type(sampler).__name__} has no length; the end of a pass is not known")
    return False, sampler
