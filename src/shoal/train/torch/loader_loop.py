"""The loop over a loader, which goes on through changes of the membership.

A loop is cut into segments. Within a segment the membership and the batch size are fixed, so the
inner DataLoader, its worker processes included, runs as usual. A boundary that ends a segment makes
a new plan from the position that all workers agree on: each sample is used once per pass.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol

from shoal.train import checkpoint, messages
from shoal.train.torch import epoch as epochs
from shoal.train.torch import metrics
from shoal.train.torch.batch_size import BatchSizeLimits, check_limits
from shoal.train.torch.goodput_report import goodput_report
from shoal.train.torch.sampler import StepPlan
from shoal.train.worker.runtime import current_session
from shoal.train.worker.session import Batch

_PROPOSE_INTERVAL = 5.0

_created: Counter[int | None] = Counter()
_current: AdaptiveDataLoaderHelper | None = None


def current_dataloader() -> AdaptiveDataLoaderHelper | None:
    """The helper of the loader whose loop runs now, or None."""
    return _current


class Batches(Protocol):
    """What the loop needs of the loader that it belongs to."""

    def _start_processes(self) -> None: ...
    def _pass_length(self, index: int) -> int: ...
    def _batches(self, plan: StepPlan, pass_number: int) -> Iterator[Any]: ...


class _LoaderState(checkpoint.State):
    """Where a loader is. `done` counts the loops that are finished in each epoch."""

    positional = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.index = 0  # samples of all workers, in the current loop
        self.passes = 0  # finished passes over the data, all loops together
        self.done: dict[int | None, int] = {}
        self.batch: Batch | None = None

    def save(self, fileobj: IO[bytes]) -> None:
        pickle.dump((self.index, self.passes, self.done, self.batch), fileobj)

    def load(self, fileobj: IO[bytes]) -> None:
        self.index, self.passes, self.done, self.batch = pickle.load(fileobj)


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
        self.is_stream = False  # the length of a pass is not known before its end
        self._state = _LoaderState(f"adaptdl-dataloader-epoch{self._session.epoch}-{number}")
        checkpoint.load_state(self._state)
        self._session.history.created(self._state.name, self._session.epoch, self)
        self._loops: dict[int | None, int] = {}  # loops of this script, in each epoch
        self._plan: StepPlan | None = None
        self._last_plan: StepPlan | None = None
        self._step = 0
        self._micro = 0
        self._micro_count = 0
        self._micro_samples = 0
        self._rank_samples = 0
        self._training = False
        self._propose_after = 0.0
        self._reported_fits = 0
        self._rate_from: tuple[float, int] | None = None
        self._starts: dict[int, int] = {}  # the index at which each recent tick began

    @property
    def name(self) -> str:
        """The same in every worker, and in a later run of the script."""
        return self._state.name

    @property
    def passes(self) -> int:
        """How many passes over the data are finished."""
        return self._state.passes

    def sizes(self) -> tuple[int, int]:
        """Samples per worker and micro-batch, and micro-batches per step, from here on."""
        return self._limits().sizes(self._session.size, self._state.batch)

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
        """This loader's loop trains a model: called by the model."""
        if not self._training:
            self._training = True
            metrics.set_batch_size(
                self.batch_size,
                self.max_batch_size,
                self.local_bsz_bounds,
                self._gradient_accumulation,
            )

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int, int] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Allow the batch size to grow up to `max_batch_size`."""
        check_limits(self.batch_size, max_batch_size, local_bsz_bounds)
        self.max_batch_size = max_batch_size
        self.local_bsz_bounds = local_bsz_bounds
        self._gradient_accumulation = gradient_accumulation

    def limit_batch(
        self, maximum: int, per_worker: tuple[int, int] | None, accumulate: bool | None
    ) -> None:
        """As `autoscale_batch_size`, but the bounds are those of one worker: a batch that is larger
        than one worker may have in one forward is split over workers, or over several forwards."""
        lowest, highest = per_worker or (None, None)
        if lowest is not None and highest is not None and not 1 <= lowest <= highest:
            raise ValueError(f"per_worker must be two positive numbers in order, not {per_worker}")
        check_limits(self.batch_size, maximum, (lowest, maximum) if lowest else None)
        self.max_batch_size = maximum
        self.local_bsz_bounds = per_worker
        needs_it = highest is not None and highest < self.batch_size
        self._gradient_accumulation = needs_it if accumulate is None else accumulate

    def to_tensorboard(self, writer: Any, global_step: int, tag_prefix: str = "") -> None:
        """Write the batch sizes of the running loop, or of the last one."""
        plan = self._last_plan
        if plan is None:
            return
        prefix = tag_prefix and f"{tag_prefix.rstrip('/')}/"
        values = {
            "Total_Batch_Size": plan.batch,
            "Local_Batch_Size": plan.local_batch,
            "Accumulation_Steps": plan.micro_batches - 1,
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

    @property
    def micro_batch_scale(self) -> float:
        """The samples of one micro-batch of all workers, relative to the initial batch size."""
        assert self._plan is not None
        return self._plan.local_batch * self._plan.size / self.batch_size

    @property
    def scale_may_change(self) -> bool:
        """Whether the batch size is, or may become, another than the initial one."""
        return self.max_batch_size is not None or self.micro_batch_scale != 1.0

    @property
    def is_even(self) -> bool:
        """Whether all workers have equally many samples in this step."""
        assert self._plan is not None
        return self._plan.samples(self._step) == self._plan.batch

    # --- the loop ---

    @contextmanager
    def _loop(self) -> Iterator[None]:
        global _current
        if _current is not None:
            raise RuntimeError("loops over loaders cannot be nested")
        _current = self
        self._session.loop_begins()
        self._session.progress = self._progress
        self._session.propose_batch = self._propose_batch
        self._session.adopt_batch = self._adopt_batch
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
            session.replaying and epoch is not None and epoch < epochs.finished_epochs()
        )

    def run(self, loader: Batches, drop_last: bool) -> Iterator[Any]:
        epoch = self._session.epoch
        with self._loop():
            if not self._session.entered:
                loader._start_processes()
            try:
                yield from self._run_to_the_end(loader, drop_last)
            except GeneratorExit:  # the script has left the loop early
                self._finish_loop()
                raise
            finally:
                _count(self._loops, epoch)

    def _run_to_the_end(self, loader: Batches, drop_last: bool) -> Iterator[Any]:
        session = self._session
        while not self.is_done():
            if session.replaying:
                session.go_live()
            length = loader._pass_length(self._state.index)
            local, micro = self.sizes()
            plan = StepPlan(length, self._state.index, session.size, local, micro, drop_last)
            if len(plan) > 0 and not self._is_enough(length):
                self._plan = self._last_plan = plan
                yield from self._run_segment(loader, plan)
            elif not session.entered:
                session.boundary()
            elif not session.end_of_pass():
                self._return_to_tick()
            elif self._has_progress_goal and not self._is_enough(length):
                self._state.index = 0
                self._state.passes += 1
            else:
                self._finish_loop()

    def _limits(self) -> BatchSizeLimits:
        return BatchSizeLimits(
            self.batch_size,
            self.max_batch_size,
            self.local_bsz_bounds,
            self._gradient_accumulation,
        )

    def _propose_batch(self) -> Batch | None:
        """On rank 0, now and then."""
        now = time.monotonic()
        if self.max_batch_size is None or self._plan is None or now < self._propose_after:
            return None
        self._propose_after = now + _PROPOSE_INTERVAL
        return self._limits().better(self._plan, self._session.num_nodes)

    def _adopt_batch(self, batch: Batch) -> bool:
        """All workers do this at the same boundary."""
        is_new = batch != self._state.batch
        self._state.batch = batch
        return is_new

    @property
    def _has_progress_goal(self) -> bool:
        """With a batch size that changes, an epoch is as much progress as one pass at the initial
        batch size, in one pass over the data or more."""
        is_adaptive = self.max_batch_size is not None and self._training
        return is_adaptive and self._session.epoch is not None and not self.is_stream

    def _is_enough(self, length: int) -> bool:
        if not self._has_progress_goal:
            return False
        return metrics.get_progress() >= length * ((self._session.epoch or 0) + 1) / self.batch_size

    def _finish_loop(self) -> None:
        state = self._state
        state.index = 0
        state.passes += 1
        _count(state.done, self._session.epoch)

    def _run_segment(self, loader: Batches, plan: StepPlan) -> Iterator[Any]:
        """Steps with one plan, until the pass ends or a boundary says that something changed."""
        session = self._session
        batches: Iterator[Any] | None = None
        for step in range(len(plan)):
            if step > 0 and self._is_enough(plan.length):
                return
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
                batch = next(batches)
                metrics.profile_step_start(plan.local_batch)
                yield batch
                if self._training and self.is_even and not session.failed:
                    metrics.profile_step_commit(accumulation_step=self.is_accum_step())
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

    def _report_goodput(self) -> None:
        """After each fit: what the job would get from other numbers of workers."""
        session = self._session
        if not session.rendezvous.is_elastic or metrics.fits() == self._reported_fits:
            return
        self._reported_fits = metrics.fits()
        report = goodput_report(session.worker, session.num_nodes, session.size)
        if report is not None:
            session.rendezvous.send(report)

    def _progress(self) -> messages.Progress | None:
        plan = self._plan
        if plan is None:
            return None
        session = self._session
        self._report_goodput()
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
            goodput=_goodput(rate, plan.batch),
        )


def _goodput(rate: float, batch_size: int) -> float | None:
    function = metrics.get_goodput_fn()
    if function is None or not rate:
        return None
    return rate * float(function.efficiency(batch_size))


def _count(loops: dict[int | None, int], epoch: int | None) -> None:
    """One loop more in that epoch. Loops of earlier ones are done, whatever their number is."""
    loops[epoch] = loops.get(epoch, 0) + 1
    if epoch is not None:
        for old in [at for at in loops if at is not None and at < epoch - 1]:
            del loops[old]
