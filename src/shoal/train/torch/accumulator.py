"""Sums over all workers that survive restarts and changes of the membership.

A worker that is killed in a training loop takes along what it has added in its last step; a loop
without optimizer steps, such as validation, is exact.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import IO, Any

from shoal.train import checkpoint
from shoal.train.worker.runtime import current_session

_created: Counter[int | None] = Counter()


class Accumulator(MutableMapping[Any, Any]):
    """Collects values on each worker and adds them up in `synchronized()`.

    Outside of `synchronized()` only `accumulator[key] += value`, `-= value`, `update` and
    `subtract` work, and reading finds nothing. Inside, it is a dictionary of the sums of all
    workers; `synchronized()` is a collective, and what a worker changes there, all must change.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        session = current_session()
        if session.in_loop:
            raise RuntimeError("an Accumulator cannot be created inside a loop over a loader")
        number = _created[session.epoch]
        _created[session.epoch] += 1
        name = f"adaptdl-accumulator-epoch{session.epoch}-{number}"
        self._name = name
        self._session = session
        self._open: dict[Any, Any] | None = None
        self._state = _AccumulatorState(name)
        session.history.created(name, session.epoch, self)
        if not checkpoint.load_state(self._state):
            session.accumulation.totals.setdefault(name, dict(*args, **kwargs))

    @contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """The sums of all workers, while the block runs."""
        if self._open is not None:
            yield self
            return
        sums = self._session.collective(None, self._sums)
        self._open = copy.deepcopy(sums)
        try:
            yield self
        finally:
            if not self._session.replaying:
                self._session.accumulation.totals[self._name] = self._open
            self._open = None

    def _sums(self, _: list[Any]) -> dict[Any, Any]:
        return copy.deepcopy(self._session.accumulation.totals.get(self._name, {}))

    def __getitem__(self, key: Any) -> Any:
        return _Change(None) if self._open is None else self._open[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._open is not None:
            self._open[key] = value
        elif not isinstance(value, _Change):
            raise TypeError("outside of synchronized(), an Accumulator only takes += and -=")
        elif value.amount is not None:
            self._add(key, value.amount)

    def __delitem__(self, key: Any) -> None:
        if self._open is None:
            raise TypeError("outside of synchronized(), an Accumulator only takes += and -=")
        del self._open[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._open or ())

    def __len__(self) -> int:
        return len(self._open or ())

    def __contains__(self, key: object) -> bool:
        return key in (self._open or ())

    def __iadd__(self, other: Any) -> Accumulator:
        self.update(other)
        return self

    def __isub__(self, other: Any) -> Accumulator:
        self.subtract(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add to each key, as a Counter does."""
        for key, value in _pairs(args, kwargs):
            self[key] += value

    def subtract(self, *args: Any, **kwargs: Any) -> None:
        for key, value in _pairs(args, kwargs):
            self[key] -= value

    def __repr__(self) -> str:
        return f"Accumulator({self._open if self._open is not None else {}})"

    def _add(self, key: Any, amount: Any) -> None:
        session = self._session
        if not session.replaying and not session.muted:
            session.accumulation.add(session.tick, self._name, key, amount)


class _Change:
    """What `accumulator[key]` is before something is added to it."""

    def __init__(self, amount: Any) -> None:
        self.amount = amount

    def __add__(self, value: Any) -> _Change:
        return _Change(value if self.amount is None else self.amount + value)

    def __sub__(self, value: Any) -> _Change:
        return _Change(-value if self.amount is None else self.amount - value)


class _AccumulatorState(checkpoint.State):
    """An accumulator's sums in durable checkpoints. Workers that join get them with the session."""

    def save(self, fileobj: IO[bytes]) -> None:
        pickle.dump(current_session().accumulation.totals.get(self.name, {}), fileobj)

    def load(self, fileobj: IO[bytes]) -> None:
        current_session().accumulation.totals[self.name] = pickle.load(fileobj)

    def snapshot(self) -> Any:
        return None

    def restore(self, snapshot: Any) -> None:
        """The session has brought them already."""


def _pairs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[tuple[Any, Any]]:
    return dict(*args, **kwargs).items()
