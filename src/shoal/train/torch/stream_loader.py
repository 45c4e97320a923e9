"""A DataLoader over an IterableDataset, on all workers of a job.

A stream cannot be split by indices, and its length is not known before its end. So every worker
reads the whole stream and keeps its own part of each step; a dropped step is served again from what
was read. A worker that joins continues with `load_state_dict` where the dataset has it, and skips
what the others have used where it does not.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import IO, Any

from torch.utils.data import DataLoader

from shoal.train import checkpoint
from shoal.train.torch.data import AdaptiveDataLoaderMixin
from shoal.train.torch.sampler import StepPlan
from shoal.train.worker.runtime import current_session

_KEPT_STEPS = 10  # a dropped step is one of the last few


class StreamLoader(AdaptiveDataLoaderMixin):
    """Iterates over the batches of this worker."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        if loader.batch_size is None:
            raise TypeError("the loader does not form batches; pass batch_size")
        super().__init__(loader.batch_size)
        self.dataset: Any = loader.dataset
        self._drop_last = loader.drop_last
        self._collate = loader.collate_fn
        self._elastic.is_stream = True
        self._source: Iterator[Any] | None = None
        self._read: list[Any] = []  # samples from `_first` on
        self._first = 0
        self._has_ended = False
        self._pass = 0
        self._states: dict[int, Any] = {}  # of the dataset, by the number of samples before it
        self._given: tuple[int, Any] | None = None  # where another worker is
        self._position = _StreamPosition(f"{self._elastic.name}-stream", self)
        checkpoint.load_state(self._position)

    def __iter__(self) -> Any:
        return self._elastic.run(self, self._drop_last)

    def grow_batch(
        self, max: int, per_worker: tuple[int, int] | None = None, accumulate: bool | None = None
    ) -> None:
        """As for a loader over a dataset with a length."""
        self._elastic.limit_batch(max, per_worker, accumulate)

    # --- for the loop ---

    def _start_processes(self) -> None:
        """Samples are read in this process."""

    def _pass_length(self, index: int) -> int:
        """As far as it is known: to the end of the step at `index`, or of the stream."""
        is_new_pass = self._pass != self._elastic.passes
        if self._source is None or index < self._first or is_new_pass:
            self._begin_at(index)
        local, micro_batches = self._elastic.sizes()
        wanted = index + local * micro_batches * current_session().size
        self._read_until(wanted)
        keep_from = index - _KEPT_STEPS * (wanted - index)
        if keep_from > self._first:
            del self._read[: keep_from - self._first]
            self._first = keep_from
            self._states = {at: state for at, state in self._states.items() if at >= keep_from}
        return min(wanted, self._first + len(self._read))

    def _batches(self, plan: StepPlan, pass_number: int) -> Iterator[Any]:
        for step in range(len(plan)):
            for first, end in plan.micro_shares(step, current_session().rank) or [
                (plan.start, plan.start + 1)
            ]:
                yield self._collate(self._read[first - self._first : end - self._first])

    # --- reading ---

    def _begin_at(self, index: int) -> None:
        given, self._given = self._given, None
        skipped = index
        if given is not None and given[0] == index and given[1] is not None:
            self.dataset.load_state_dict(copy.deepcopy(given[1]))
            skipped = 0
        self._states = {index: self._state_of_dataset()} if not skipped else {}
        self._source = iter(self.dataset)
        for _ in range(skipped):
            next(self._source, None)
        if skipped:
            self._states = {index: self._state_of_dataset()}
        self._read, self._first, self._has_ended = [], index, False
        self._pass = self._elastic.passes

    def _read_until(self, position: int) -> None:
        assert self._source is not None
        while self._first + len(self._read) < position and not self._has_ended:
            try:
                self._read.append(next(self._source))
            except StopIteration:
                self._has_ended = True
        self._states.setdefault(self._first + len(self._read), self._state_of_dataset())

    def _state_of_dataset(self) -> Any:
        if not hasattr(self.dataset, "state_dict"):
            return None
        return copy.deepcopy(self.dataset.state_dict())

    def position(self) -> tuple[int, Any]:
        """How many samples of this pass are used, and the dataset's state there."""
        index = self._elastic.current_index
        if self._given is not None and self._given[0] == index:
            return self._given
        return index, self._states.get(index)

    def continue_at(self, position: tuple[int, Any]) -> None:
        self._given, self._source = position, None


class _StreamPosition(checkpoint.State):
    def __init__(self, name: str, loader: StreamLoader) -> None:
        super().__init__(name)
        self._loader = loader

    def save(self, fileobj: IO[bytes]) -> None:
        pickle.dump(self._loader.position(), fileobj)

    def load(self, fileobj: IO[bytes]) -> None:
        self._loader.continue_at(pickle.load(fileobj))
