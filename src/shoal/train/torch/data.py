"""A DataLoader whose loop goes on through changes of the membership.

A loop is cut into segments. Within a segment the membership and the batch size are fixed, so the
inner DataLoader, its worker processes included, runs as usual. A boundary that ends a segment makes
a new plan from the position that all workers agree on: each sample is used once per pass.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from torch.utils.data import DataLoader, Dataset

from shoal.train import checkpoint, messages
from shoal.train.torch import epoch as epochs
from shoal.train.torch.sampler import ElasticSampler, StepPlan, pass_order
from shoal.train.worker.runtime import current_session

_created: Counter[int | None] = Counter()
_current: AdaptiveDataLoaderHelper | None = None


def current_dataloader() -> AdaptiveDataLoaderHelper | None:
    """The helper of the loader whose loop runs now, or None."""
    return _current


class _LoaderState(checkpoint.State):
    """Where a loader is. `done` counts the loops that are finished in each epoch."""

    positional = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.index = 0  # samples of all workers, in the current loop
        self.passes = 0  # finished passes over the data, all loops together
        self.done: dict[int | None, int] = {}
        self.local_batch = 0
        self.micro_batches = 1

    def save(self, fileobj: IO[bytes]) -> None:
        pickle.dump(
            (self.index, self.passes, self.done, self.local_batch, self.micro_batches), fileobj
        )

    def load(self, fileobj: IO[bytes]) -> None:
        self.index, self.passes, self.done, self.local_batch, self.micro_batches = pickle.load(
            fileobj
        )


class AdaptiveDataLoaderHelper:
    """The elastic part of a loader, by AdaptDL's names. It runs the loop; the loader only makes
    batches from lists of indices."""

    def __init__(self, batch_size: int = 1) -> None:
        self._session = current_session()
        number = _created[self._session.epoch]
        _created[self._session.epoch] += 1
        self.batch_size = batch_size
        self.max_batch_size: int | None = None
        self.local_bsz_bounds: tuple[int, int] | None = None
        self._gradient_accumulation = False
        self._state = _LoaderState(f"adaptdl-dataloader-epoch{self._session.epoch}-{number}")
        checkpoint.load_state(self._state)
        self._loops: dict[int | None, int] = {}  # loops of this script, in each epoch
        self._plan: StepPlan | None = None
        self._step = 0
        self._micro = 0
        self._micro_count = 0
        self._micro_samples = 0
        self._rank_samples = 0
        self._training = False
        self._rate_from: tuple[float, int] | None = None
        self._starts: dict[int, int] = {}  # the index at which each recent tick began

    # --- what a script may ask ---

    @property
    def current_index(self) -> int:
        return self._state.index

    @current_index.setter
    def current_index(self, index: int) -> None:
        self._state.index = index

    @property
    def end_index(self) -> int:
        return self._plan.length if self._plan is not None else 0

    @property
    def current_local_bsz(self) -> int | None:
        """Samples per worker and forward, or None outside of this loader's loop."""
        return self._plan.local_batch if self._plan is not None else None

    @property
    def current_batch_size(self) -> int | None:
        """Samples per step on all workers together, or None outside of this loader's loop."""
        return self._plan.batch if self._plan is not None else None

    @property
    def accumulation_steps(self) -> int:
        """How many micro-batches come before the one that ends in a step."""
        return self._plan.micro_batches - 1 if self._plan is not None else 0

    def is_accum_step(self) -> bool:
        return self._micro < self._micro_count - 1

    def is_optim_step(self) -> bool:
        return not self.is_accum_step()

    @property
    def training(self) -> bool:
        return self._training

    def train(self) -> None:
        """This loader's loop trains a model: called by the model's first backward."""
        self._training = True

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int, int] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Allow the batch size to grow up to `max_batch_size`."""
        if not isinstance(max_batch_size, int) or max_batch_size < self.batch_size:
            raise ValueError(f"max_batch_size must be an integer of at least {self.batch_size}")
        if local_bsz_bounds is not None:
            low, high = local_bsz_bounds
            if low is not None and low > self.batch_size:
                raise ValueError(f"local_bsz_bounds must include the batch size {self.batch_size}")
            if high is not None and high < self.batch_size:
                raise ValueError(f"local_bsz_bounds must include the batch size {self.batch_size}")
        self.max_batch_size = max_batch_size
        self.local_bsz_bounds = local_bsz_bounds
        self._gradient_accumulation = gradient_accumulation

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        prefix = tag_prefix and f"{tag_prefix.rstrip('/')}/"
        values = {
            "Total_Batch_Size": self.current_batch_size,
            "Local_Batch_Size": self.current_local_bsz,
            "Accumulation_Steps": self.accumulation_steps,
        }
        for tag, value in values.items():
            writer.add_scalar(f"{prefix}{tag}", value, global_step)

    # --- what the model asks ---

    @property
    def micro_batch_weight(self) -> float:
        """By how much the gradient of this micro-batch counts among those of this worker."""
        return self._micro_samples * self._micro_count / max(1, self._rank_samples)

    @property
    def worker_weight(self) -> float:
        """By how much the gradient that this worker has summed up counts in the step's."""
        assert self._plan is not None
        total = self._plan.samples(self._step)
        return self._rank_samples / total / max(1, self._micro_count)

    @property
    def first_micro_batch(self) -> bool:
        return self._micro == 0

    # --- the loop ---

    @contextmanager
    def _loop(self) -> Iterator[None]:
        global _current
        if _current is not None:
            raise RuntimeError("loops over loaders cannot be nested")
        _current = self
        self._session.loop_begins()
        self._session.progress = self._progress
        try:
            yield
        finally:
            self._plan = None
            self._training = False
            self._session.loop_ends()
            _current = None

    def is_done(self) -> bool:
        """Whether the others have finished this loop before this script has come to it."""
        session = self._session
        epoch = session.epoch
        return self._loops.get(epoch, 0) < self._state.done.get(epoch, 0) or (
            session.replaying and epoch is not None and epoch < epochs.live_epoch()
        )

    def run(self, loader: AdaptiveDataLoader, length: int, drop_last: bool) -> Iterator[Any]:
        epoch = self._session.epoch
        with self._loop():
            if not self._session.entered:
                loader._start_processes()
            try:
                yield from self._run_to_the_end(loader, length, drop_last)
            except GeneratorExit:  # the script has left the loop early
                self._finish_loop()
                raise
            finally:
                self._loops[epoch] = self._loops.get(epoch, 0) + 1

    def _run_to_the_end(
        self, loader: AdaptiveDataLoader, length: int, drop_last: bool
    ) -> Iterator[Any]:
        session = self._session
        while not self.is_done():
            if session.replaying:
                session.go_live()
            local, micro = self._batch_sizes()
            plan = StepPlan(length, self._state.index, session.size, local, micro, drop_last)
            if len(plan) > 0:
                self._plan = plan
                yield from self._run_segment(loader, plan)
            elif not session.entered:
                session.boundary()
            elif session.end_of_pass():
                self._finish_loop()
            else:
                self._return_to_tick()

    def _finish_loop(self) -> None:
        state = self._state
        state.index = 0
        state.passes += 1
        state.done[self._session.epoch] = state.done.get(self._session.epoch, 0) + 1

    def _batch_sizes(self) -> tuple[int, int]:
        return math.ceil(self.batch_size / self._session.size), 1

    def _run_segment(self, loader: AdaptiveDataLoader, plan: StepPlan) -> Iterator[Any]:
        """Steps with one plan, until the pass ends or a boundary says that something changed."""
        session = self._session
        batches: Iterator[Any] | None = None
        for step in range(len(plan)):
            if not session.boundary():
                self._return_to_tick()
                return
            if batches is None:
                batches = loader._batches(plan, self._state.passes)
            self._remember_start(plan.start + step * plan.batch)
            self._step = step
            shares = plan.micro_shares(step, session.rank)
            self._micro_count = max(1, len(shares))
            self._rank_samples = sum(end - first for first, end in shares)
            session.muted = not shares
            for micro in range(self._micro_count):
                self._micro = micro
                self._micro_samples = shares[micro][1] - shares[micro][0] if shares else 0
                yield next(batches)
            session.muted = False
            self._state.index = plan.end(step)

    def _remember_start(self, index: int) -> None:
        tick = self._session.tick
        self._starts = {at: start for at, start in self._starts.items() if tick - 8 < at < tick}
        self._starts[tick] = index

    def _return_to_tick(self) -> None:
        """After a roll-back the loop goes on where the first tick that is not kept began."""
        undone = [tick for tick in self._starts if tick > self._session.tick]
        if undone and not self._session.replaying:
            self._state.index = self._starts[min(undone)]
        self._starts = {}

    def _progress(self) -> messages.Progress | None:
        plan = self._plan
        if plan is None:
            return None
        session = self._session
        now, samples = time.monotonic(), self._state.passes * plan.length + self._state.index
        rate = 0.0
        if self._rate_from is not None and now > self._rate_from[0]:
            rate = max(0.0, (samples - self._rate_from[1]) / (now - self._rate_from[0]))
        self._rate_from = (now, samples)
        return messages.Progress(
            worker=session.worker,
            epoch=session.epoch or 0,
            step=session.step,
            samples=self._state.index,
            pass_size=plan.length,
            loader=self._state.name,
            batch_size=plan.batch,
            local_batch_size=plan.local_batch,
            throughput=rate,
            generation=session.generation.number if session.generation is not None else 0,
            epochs=epochs.total_epochs(),
        )


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
        return self._elastic.current_local_bsz if _current is self._elastic else None

    @property
    def current_batch_size(self) -> int | None:
        return self._elastic.current_batch_size if _current is self._elastic else None

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
        return self._elastic.run(self, len(self.dataset), self._drop_last)

    def __len__(self) -> int:
        """How many batches this worker still has in this pass."""
        size = current_session().size
        local = math.ceil(self._elastic.batch_size / size)
        length = len(self.dataset)
        return len(StepPlan(length, 0, size, local, 1, self._drop_last))

    def _start_processes(self) -> None:
        """Start the loader's processes while the other workers train."""
        if self.num_workers > 0 and self.persistent_workers:
            self._step_batches.ranges = []
            list(super().__iter__())

    def _batches(self, plan: StepPlan, pass_number: int) -> Iterator[Any]:
        """What the inner DataLoader makes of this worker's part of the plan. A worker without
        samples computes with one that is not its own, which then counts for nothing."""
        rank = current_session().rank
        self._step_batches.order = pass_order(plan.length, self._shuffle, pass_number)
        self._step_batches.ranges = [
            share
            for step in range(len(plan))
            for share in plan.micro_shares(step, rank) or [(plan.start, plan.start + 1)]
        ]
        return super().__iter__()
