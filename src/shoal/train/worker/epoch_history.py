"""What is kept of finished epochs: as much as a worker that joins may still have to replay.

A joiner begins in the epoch that the others are in when it asks, and goes through the epochs that
they finish until it trains with them. So what they have agreed on since then is kept for it, and
not more: a script may run for many thousand epochs.
"""

from __future__ import annotations

import weakref

from shoal.train import checkpoint

# A joiner may be left out of a generation, or of several, before it trains.
_KEPT_EPOCHS = 32


class EpochHistory:
    """From which epoch on results are kept, and the states that were created in each epoch."""

    def __init__(self) -> None:
        self._joiners_begin_in: int | None = None
        self._owners: dict[str, tuple[int, weakref.ref[object]]] = {}

    def generation_announced(self, epoch: int | None) -> None:
        """From now on its joiners may ask for the epoch."""
        if self._joiners_begin_in is None:
            self._joiners_begin_in = epoch or 0

    def generation_begun(self) -> None:
        self._joiners_begin_in = None

    def created(self, name: str, epoch: int | None, owner: object) -> None:
        """A state that is of use to `owner` only, and to joiners while its epoch is kept."""
        if epoch is not None:
            self._owners[name] = (epoch, weakref.ref(owner))

    def first_kept(self, epoch: int) -> int:
        first = epoch - _KEPT_EPOCHS
        return first if self._joiners_begin_in is None else min(first, self._joiners_begin_in)

    def forget_before(self, epoch: int) -> list[str]:
        """Unregister the states of earlier epochs that the script does not hold any more."""
        gone = [n for n, (at, owner) in self._owners.items() if at < epoch and owner() is None]
        for name in gone:
            del self._owners[name]
            checkpoint.unregister(name)
        return gone
