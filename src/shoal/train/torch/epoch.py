"""Epochs that a restarted or joining script enters where the others are."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import IO

from shoal.train import checkpoint
from shoal.train.worker.runtime import current_session


class _EpochState(checkpoint.State):
    positional = True

    def __init__(self) -> None:
        super().__init__("adaptdl-epoch")
        self.finished = 0  # in the history that survives
        self.current: int | None = None
        self.until = 0

    def save(self, fileobj: IO[bytes]) -> None:
        pickle.dump(self.finished, fileobj)

    def load(self, fileobj: IO[bytes]) -> None:
        self.finished = pickle.load(fileobj)


_state: _EpochState | None = None


def _epochs() -> _EpochState:
    global _state
    if _state is None:
        _state = _EpochState()
        checkpoint.load_state(_state)
    return _state


def current_epoch() -> int | None:
    """The epoch of the innermost `remaining_epochs_until` loop, or None outside of one."""
    return _state.current if _state is not None else None


def finished_epochs() -> int:
    """How many epochs are finished; inside an epoch's loop, the epoch itself. While a script
    replays, this is the epoch of the workers that train."""
    return _epochs().finished


def total_epochs() -> int:
    """How many epochs the script wants, or 0 if it has not said so."""
    return _state.until if _state is not None else 0


def remaining_epochs_until(epoch: int) -> Iterator[int]:
    """Iterate over the epochs that are left until `epoch`. An epoch that is left early, by `break`
    or an exception, counts as finished."""
    state = _epochs()
    if state.current is not None:
        raise RuntimeError("loops over epochs cannot be nested")
    state.until = epoch
    session = current_session()
    own = session.first_epoch(state.finished)
    while own < epoch:
        state.current = own
        session.epoch_begins(own)
        if not session.replaying:
            state.finished = own
        try:
            yield own
        finally:
            state.current = None
            own += 1
            if not session.replaying:
                state.finished = max(state.finished, own)
    session.epoch = None
