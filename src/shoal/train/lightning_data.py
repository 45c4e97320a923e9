"""The samples of Lightning's training loop when its workers are started again in the middle of an
epoch: those that are left of the pass, whatever the number of workers was and is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from shoal.train.torch.resumable_sampler import left_of_pass


class ResumedSampler(DistributedSampler[Any]):
    """Like DistributedSampler, which Lightning would put in its place, but begins after the `used`
    samples of the pass. Its length stays that of the whole pass: the loop counts from its start."""

    def __init__(self, dataset: Any, *, shuffle: bool, seed: int, drop_last: bool) -> None:
        workers, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        super().__init__(dataset, workers, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.epoch: int = 0
        self.used = 0  # samples of this pass, by all workers together

    def set_epoch(self, epoch: int) -> None:
        """Begin a pass. The pass that is under way goes on."""
        if epoch != self.epoch:
            self.epoch, self.used = epoch, 0

    def __iter__(self) -> Iterator[Any]:
        left = left_of_pass(len(self.dataset), self.shuffle, self.seed, self.epoch, self.used)
        if self.drop_last:
            left = left[: len(left) - len(left) % self.num_replicas]
        elif left:
            # Every worker needs a sample in the last step.
            left = [*left, *(left * self.num_replicas)[: -len(left) % self.num_replicas]]
        return iter(left[self.rank :: self.num_replicas])


def resumable(loader: Any, seed: int) -> tuple[Any, ResumedSampler | None]:
    """The loader with a sampler that can begin in the middle of a pass; as it is, and None, where
    it has a sampler of its own."""
    if type(loader) is not DataLoader or type(loader.sampler) not in (
        RandomSampler,
        SequentialSampler,
    ):
        return loader, None
    if loader.batch_size is None or getattr(loader.sampler, "replacement", False):
        return loader, None
    sampler = ResumedSampler(
        loader.dataset,
        shuffle=isinstance(loader.sampler, RandomSampler),
        seed=seed,
        drop_last=loader.drop_last,
    )
    made: DataLoader[Any] = DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
    return made, sampler


class Position:
    """Where the loop is in its pass, in samples: kept in the checkpoint, and turned into a number
    of batches of the size that all workers together have now."""

    def __init__(self) -> None:
        self._sampler: ResumedSampler | None = None
        self._batch = 0
        self._is_resumed = False

    def use(self, loader: Any, sampler: ResumedSampler) -> None:
        self._sampler = sampler
        self._batch = loader.batch_size * sampler.num_replicas

    def state(self) -> dict[str, int]:
        sampler = self._sampler
        return {"epoch": sampler.epoch, "used": sampler.used} if sampler is not None else {}

    def load(self, state: dict[str, int]) -> None:
        """Called before the loop takes its first batch."""
        if self._sampler is not None and state:
            self._sampler.epoch, self._sampler.used = state["epoch"], state["used"]
            self._is_resumed = True

    def resume(self, trainer: Any) -> None:
        """Let the loop count the batches of its first epoch from where the checkpoint was taken."""
        sampler = self._sampler
        if sampler is None or not self._is_resumed:
            return
        left = self._samples - sampler.used
        batches = left // self._batch if sampler.drop_last else -(-left // self._batch)
        done = max(1, int(trainer.num_training_batches) - batches)
        loop = trainer.fit_loop.epoch_loop
        current = loop.batch_progress.current
        # Lightning completes the batch after whose end the checkpoint was taken.
        completes = getattr(loop, "restarted_on_train_batch_end", False)
        current.ready = current.started = current.processed = done
        current.completed = done - 1 if completes else done

    def advance(self) -> bool:
        """After a batch. Whether more of the pass are left: only then can a checkpoint be taken,
        because Lightning begins the next epoch in its own way."""
        sampler = self._sampler
        if sampler is None:
            return True
        sampler.used = min(self._samples, sampler.used + self._batch)
        left = self._samples - sampler.used
        return left >= self._batch if sampler.drop_last else left > 0

    @property
    def _samples(self) -> int:
        assert self._sampler is not None
        return len(self._sampler.dataset)
