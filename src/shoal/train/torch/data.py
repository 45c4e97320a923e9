"""A DataLoader over all workers of a job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from shoal.train.torch.loader_loop import AdaptiveDataLoaderHelper, current_dataloader
from shoal.train.torch.sampler import ElasticSampler, StepPlan, pass_order
from shoal.train.worker.runtime import current_session

__all__ = [
    "AdaptiveDataLoader",
    "AdaptiveDataLoaderHelper",
    "AdaptiveDataLoaderMixin",
    "ElasticSampler",
    "current_dataloader",
]


class AdaptiveDataLoaderMixin:
    """Gives a loader `self._elastic`, and AdaptDL's properties."""

    def __init__(self, batch_size: int) -> None:
        self._elastic = AdaptiveDataLoaderHelper(batch_size)

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int, int] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        self._elastic.autoscale_batch_size(max_batch_size, local_bsz_bounds, gradient_accumulation)

    @property
    def current_local_bsz(self) -> int | None:
        return self._elastic.current_local_bsz if current_dataloader() is self._elastic else None

    @property
    def current_batch_size(self) -> int | None:
        return self._elastic.current_batch_size if current_dataloader() is self._elastic else None

    @property
    def accumulation_steps(self) -> int:
        return self._elastic.accumulation_steps

    @property
    def training(self) -> bool:
        return self._elastic.training

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        self._elastic.to_tensorboard(writer, global_step, tag_prefix)


class _StepBatches:
    """The batch sampler of the inner DataLoader: the indices of this worker's micro-batches."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        order = self.order
        return iter([order[first:end] for first, end in self.ranges])

    def __len__(self) -> int:
        return len(self.ranges)


class AdaptiveDataLoader(DataLoader[Any], AdaptiveDataLoaderMixin):
    """A DataLoader over all workers. `batch_size` is the batch of all of them together.

    Takes what DataLoader takes, except `sampler` and `batch_sampler`. One loop runs at a time.
    """

    def __init__(
        self, dataset: Dataset[Any], batch_size: int = 1, shuffle: bool = False, **kwargs: Any
    ) -> None:
        for name in ("sampler", "batch_sampler"):
            if kwargs.pop(name, None) is not None:
                raise ValueError(f"AdaptiveDataLoader takes no {name}: it makes its own")
        self._drop_last = bool(kwargs.pop("drop_last", False))
        self._shuffle = shuffle
        self._step_batches = _StepBatches()
        if kwargs.get("num_workers", 0) > 0:
            # A change of the membership must not start the loader's processes again.
            kwargs.setdefault("persistent_workers", True)
        DataLoader.__init__(self, dataset, batch_sampler=self._step_batches, **kwargs)
        AdaptiveDataLoaderMixin.__init__(self, batch_size)
        self._elastic_sampler = ElasticSampler(dataset, shuffle)

    def __iter__(self) -> Any:
        return self._elastic.run(self, self._drop_last)

    def __len__(self) -> int:
        """How many batches this worker still has in this pass."""
        size = current_session().size
        local = math.ceil(self._elastic.batch_size / size)
        return len(StepPlan(self._pass_length(0), 0, size, local, 1, self._drop_last))

    def _pass_length(self, index: int) -> int:
        """How many samples a pass has. Called when the samples before `index` are used."""
        return len(self.dataset)

    def _pass_order(self, plan: StepPlan, pass_number: int) -> list[int]:
        """The samples of a pass in their order, the same on every worker."""
        return pass_order(plan.length, self._shuffle, pass_number)

    def _start_processes(self) -> None:
        """Start the loader's processes while the other workers train."""
        if self.num_workers > 0 and self.persistent_workers:
            self._step_batches.ranges = []
            list(super().__iter__())

    def _batches(self, plan: StepPlan, pass_number: int) -> Iterator[Any]:
        """What the inner DataLoader makes of this worker's part of the plan. A worker without
        samples computes with one that is not its own, which then counts for nothing."""
        rank = current_session().rank
        self._step_batches.order = self._pass_order(plan, pass_number)
        self._step_batches.ranges = [
            share
            for step in range(len(plan))
            for share in plan.micro_shares(step, rank) or [(plan.start, plan.start + 1)]
        ]
        return super().__iter__()
