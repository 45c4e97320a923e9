"""The worker's part in its job: which generation it trains in, and how it gets to the next.

Words used here:

- A *tick* is one step of a loader loop, from one boundary to the next, or one collective outside of
  loops. All members go through the same ticks in the same order.
- At each *boundary* all members exchange a small record, and each reads the exchange of the
  boundary before. So all of them know the same and decide the same, without waiting.
- A worker *replays* when it has another worker's state but its script has not reached that
  position yet: a joiner, or a survivor that lost a step which another survivor kept. Its loops are
  empty and its collectives answer from the log, until it is *live* again.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.train import checkpoint, messages
from shoal.train.worker import departure
from shoal.train.worker.accumulation import Accumulation, Deltas
from shoal.train.worker.collective_log import CollectiveLog
from shoal.train.worker.control_link import ControlLink
from shoal.train.worker.durable import DurableCheckpoints
from shoal.train.worker.epoch_history import EpochHistory
from shoal.train.worker.generation import Exchange, Generation, PeerLostError
from shoal.train.worker.place import WorkerPlace
from shoal.train.worker.rendezvous import Rendezvous
from shoal.train.worker.state_sync import Common, Standing, sync_state
from shoal.train.worker.tick import Tick, Undoable

_PROGRESS_INTERVAL = 1.0
_STOPPED = 143  # what a shell reports for a program that SIGTERM has ended


# Workers, samples per worker and micro-batch, micro-batches per step.
Batch = tuple[int, int, int]


class Rebuilt(Protocol):
    """Something that is built for a generation."""

    def rebuild(self, generation: Generation) -> None: ...


@dataclass
class Record:
    """What a member tells the others at a boundary."""

    commit: int
    checkpoint: bool
    stop: bool
    deltas: Deltas
    batch: Batch | None


class Session(WorkerPlace):
    def __init__(self, worker: str, host: str, link: ControlLink | None = None) -> None:
        super().__init__(Rendezvous(worker, host, link))
        self.entered = False
        self.in_loop = False
        self.muted = False  # what this worker computes in this step counts for nothing
        self.accumulation = Accumulation()
        self.tick = 0
        self.step = 0
        self.epoch: int | None = None  # of this script; the live one is in the epoch's own state
        self.progress: Callable[[], messages.Progress | None] = lambda: None
        self.propose_batch: Callable[[], Batch | None] = lambda: None
        self.adopt_batch: Callable[[Batch], bool] = lambda _: False
        self._incoming: dict[str, Any] | None = None
        self._live_epoch: int | None = None  # of the worker that the incoming states are from
        self.history = EpochHistory()
        self._log = CollectiveLog()
        self._current = Tick()
        self._rebuilt: list[Rebuilt] = []
        self._exchange: Exchange | None = None
        self._undone: dict[int, Deltas] = {}
        self._loop_start_tick = 0
        self._stop_wanted = False
        self._durable = DurableCheckpoints(self._checkpoint_written, self.note)
        self._last_progress = 0.0
        if link is not None:
            link.handle_with(self._on_message)

    # --- where this worker stands ---

    @property
    def replaying(self) -> bool:
        return self._incoming is not None

    @property
    def failed(self) -> bool:
        return self.generation is not None and self.generation.error is not None

    @property
    def stop_requested(self) -> bool:
        return self._stop_wanted

    def request_stop(self) -> None:
        """Take a checkpoint at the next boundary, then exit."""
        self._stop_wanted = True

    # --- messages ---

    def _on_message(self, message: messages.ControllerMessage) -> None:
        match message:
            case messages.Generation():
                self.history.generation_announced(self.epoch)
                self.rendezvous.announce(message)
                if message.recover and message.store is not None:
                    self._give_up(message.generation - 1, "a worker was lost")
            case messages.Commit():
                self.rendezvous.commit(message.generation)
            case messages.Cancel():
                self.rendezvous.cancel(message.generation)
            case messages.Abort():
                self._give_up(message.generation, "a node was lost")
            case messages.Checkpoint():
                self._durable.requested = True
            case messages.Stop():
                self.request_stop()

    def _give_up(self, number: int, why: str) -> None:
        running = self.generation
        if running is not None and running.number <= number:
            running.fail(why)
        self.rendezvous.give_up(number, why)  # this worker may be about to switch to one of them

    def note(self, text: str, level: str = "warning") -> None:
        """One line for the user."""
        if self.rendezvous.is_elastic:
            self.rendezvous.send(messages.Note(self.worker, level, text))
        else:
            print(f"shoal: {text}", file=sys.stderr, flush=True)

    # --- epochs ---

    def first_epoch(self, own: int) -> int:
        if self.entered or not self.rendezvous.is_elastic:
            return own
        return self.rendezvous.first_epoch(own)

    def epoch_begins(self, epoch: int) -> None:
        self.epoch = epoch
        self._log.begin(epoch)
        if self.entered and not self.replaying:
            self.rendezvous.begin_epoch(epoch)
            first = self.history.first_kept(epoch)
            self._log.forget_before(first)
            self.accumulation.forget(self.history.forget_before(first))

    # --- boundaries ---

    def loop_begins(self) -> None:
        self.in_loop = True
        self._loop_start_tick = self.tick

    def loop_ends(self) -> None:
        self.in_loop = False
        self._current.close(failed=self.failed)

    def boundary(self) -> bool:
        """Between two steps of a live loop. False: the membership or the position has changed, so
        the loader must plan again and come here again."""
        if not self.entered:
            self._enter()
            return False
        kept = self._current.close(failed=self.failed)
        if not kept or self.failed:
            self._recover(kept)
            return False
        try:
            records = self._read_exchange()
            if records and self._act_on(records):
                return False
        except PeerLostError:
            self._recover(kept=True)
            return False
        self._open_tick()
        return True

    def _open_tick(self) -> None:
        assert self.generation is not None
        self.tick += 1
        self._exchange = self.generation.start_exchange(
            Record(
                self.rendezvous.committed,
                self.rank == 0 and self._durable.is_due(periodic=self.rendezvous.is_elastic),
                self._stop_wanted,
                self.accumulation.added_before(self.tick),
                self.propose_batch() if self.rank == 0 else None,
            )
        )
        self._current.open()
        now = time.monotonic()
        if self.rank == 0 and now - self._last_progress >= _PROGRESS_INTERVAL:
            self._last_progress = now
            progress = self.progress()
            if progress is not None:
                self.rendezvous.send(progress)

    def _read_exchange(self) -> list[Record]:
        """The records of the boundary before; what the members added until then is in the totals
        from here on."""
        if self._exchange is None:
            return []
        exchange, self._exchange = self._exchange, None
        records: list[Record] = exchange.result()
        self.accumulation.merge_from_all([record.deltas for record in records], self.tick)
        return records

    def _act_on(self, records: list[Record]) -> bool:
        """Do what all members have agreed on. True: the membership or the batch size is new."""
        assert self.generation is not None
        commits = {record.commit for record in records}
        number = commits.pop() if len(commits) == 1 else 0
        switch = number > self.generation.number
        save = any(record.checkpoint for record in records)
        stop = any(record.stop for record in records)
        if switch or save or stop:
            self._flush()
        if save or stop:
            self._durable.take(self.rank, wait=stop)
        if stop:
            raise SystemExit(_STOPPED)
        if switch:
            self._switch(number)
            return True
        batch = records[0].batch
        return batch is not None and batch[0] == self.size and self.adopt_batch(batch)

    def end_of_pass(self) -> bool:
        """After the last step of a loop. False: as for `boundary`."""
        kept = self._current.close(failed=self.failed)
        if kept and not self.failed:
            try:
                records = self._read_exchange()
                if records and self._act_on(records):
                    return False
                self._flush()
                return True
            except PeerLostError:
                pass
        self._recover(kept)
        return False

    def _flush(self) -> None:
        """Bring the totals up to this moment: all members are here."""
        assert self.generation is not None
        deltas = self.generation.exchange(self.accumulation.added_before(self.tick + 1))
        self.tick += 1
        self.accumulation.merge_from_all(deltas, self.tick)

    # --- collectives outside of loops ---

    def collective(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Combine one value per member, in the order of ranks. The result is the same everywhere,
        also on a worker that joins later and runs the same lines."""
        if not self.entered:
            return self._collective_of_joiners(value, combine)
        if self.in_loop:
            return self._collective_in_loop(value, combine)
        kept = self._current.close(failed=self.failed)
        while True:
            if self.replaying:
                if self._log.has_next(self.epoch):
                    return self._log.next(self.epoch)
                if self._is_too_old():
                    departure.start_over(self.note, self.worker, self.epoch)
                self.go_live()
            assert self.generation is not None
            try:
                if not kept or self.failed:
                    raise PeerLostError(self.generation.error)
                self._read_exchange()
                added = self.accumulation.added_before(self.tick + 1)
                shares = self.generation.exchange((added, value))
            except PeerLostError:
                self._recover(kept)
                kept = True
                continue
            return self._combine(shares, combine)

    def merge_accumulators(self) -> None:
        """Bring what all members have added into the totals. In a loop, its boundaries do that."""
        if not self.in_loop:
            self.collective(None, lambda _: None)

    def _is_too_old(self) -> bool:
        """Whether the others have finished this epoch, and kept nothing of it."""
        live = self._live_epoch
        return self.epoch is not None and live is not None and self.epoch < live

    def _collective_of_joiners(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Before the first batch. What joiners add up here is replaced by the sums of the workers
        that train, if there are any."""
        generation = self.rendezvous.await_formed()
        share = (self.accumulation.added_before(self.tick + 1), value)
        try:
            shares = generation.exchange_among_joiners(share)
        except PeerLostError:
            shares = [share]
        return self._combine(shares, combine)

    def _combine(self, shares: list[Any], combine: Callable[[list[Any]], Any]) -> Any:
        self.tick += 1
        self.accumulation.merge_from_all([added for added, _ in shares], self.tick)
        result = combine([value for _, value in shares])
        self._log.add(self.epoch, result)
        return result

    def _collective_in_loop(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """A step in which this fails is dropped, so any answer will do."""
        assert self.generation is not None
        try:
            if self._exchange is not None:
                self._exchange.result()
            return combine(self.generation.exchange(value))
        except PeerLostError:
            return combine([value])

    # --- from one generation to the next ---

    def _enter(self) -> None:
        """The first batch: wait until all members have come here, or have reached a boundary."""
        self.rendezvous.send(messages.Prepared(self.worker))
        tried = 0
        while not self.entered:
            generation = self.rendezvous.await_commit(after=tried)
            tried = generation.number
            with contextlib.suppress(PeerLostError):
                self._begin(generation)

    def _recover(self, kept: bool) -> None:
        """A member was lost: go on with those that are left."""
        failed = self.generation
        assert failed is not None
        failed.fail("a worker was lost")
        self._exchange = None
        self._roll_back(kept)
        if not self.rendezvous.is_elastic:
            raise RuntimeError(f"another worker was lost: {failed.error}")
        self.rendezvous.send(
            messages.Lost(self.worker, failed.number, self.step, failed.error or "")
        )
        tried = failed.number
        while self.generation is failed:
            generation = self.rendezvous.await_commit(after=tried)
            tried = generation.number
            with contextlib.suppress(PeerLostError):
                self._begin(generation)

    def _roll_back(self, kept: bool) -> None:
        """Undo what the lost worker may not have done, unless a step has made it final."""
        self._undone = {}
        if not kept:
            self.tick -= 1
            self._current.undo()
            self._undone = self.accumulation.undo(self.tick + 1)
        elif self.in_loop and not self._current.reduced:
            # Without a step nothing is final but what all members know of.
            self.tick = max(self.accumulation.merged_ticks - 1, self._loop_start_tick)
            self.accumulation.undo(self.tick + 1)

    def _switch(self, number: int) -> None:
        generation = self.rendezvous.formed(number)
        if generation is None:
            departure.leave(self.rendezvous.send, self.worker)
        self._begin(generation)

    def _begin(self, generation: Generation) -> None:
        """Agree on the most advanced member, take over what is missing, and go on from there."""
        begun = time.monotonic()
        accumulation = self.accumulation
        synced = sync_state(
            generation,
            Standing(self.entered, self.tick, self.step, accumulation.merged_ticks),
            Common(
                self.tick,
                self.step,
                accumulation.totals,
                accumulation.merged_ticks,
                self._log.results,
                self.epoch,
            ),
            lambda: {state.name: state.snapshot() for state in checkpoint.states()},
        )
        previous, self.generation = self.generation, generation
        if not self.entered and synced.source_trained:
            accumulation.undo(0)  # the others have added that too, at the beginning of their script
        self.entered = True
        self._exchange = None
        common = synced.common
        if synced.states is not None:
            # Another worker has kept the step that this one has dropped.
            accumulation.put_back(self._undone)
            self.tick, self.step = common.tick, common.step
            self._log.results = common.log
            self._live_epoch = common.epoch
            self._incoming = synced.states
            self._apply_positions()
        accumulation.adopt(common.totals, common.merged_ticks, common.tick + 1)
        self._undone = {}
        self.history.generation_begun()
        for each in self._rebuilt:
            each.rebuild(generation)
        self.rendezvous.forget_before(generation.number)
        if previous is not None:
            previous.close()
        stall = time.monotonic() - begun
        self.rendezvous.send(messages.Switched(self.worker, generation.number, self.step, stall))

    def _apply_positions(self) -> None:
        """Epoch and loaders first: they tell where the script has to go."""
        assert self._incoming is not None
        for state in checkpoint.states():
            if state.positional and state.name in self._incoming:
                state.restore(self._incoming.pop(state.name))
        checkpoint.offer(self._incoming, positional_only=True)

    def go_live(self) -> None:
        """The script has reached the position of the state that it was given."""
        incoming, self._incoming = self._incoming or {}, None
        for state in checkpoint.states():
            if state.name in incoming:
                state.restore(incoming.pop(state.name))
        checkpoint.offer(incoming)
        self._loop_start_tick = self.tick

    # --- what others register ---

    def register_undoable(self, undoable: Undoable) -> None:
        self._current.register(undoable)

    def register_rebuilt(self, rebuilt: Rebuilt) -> None:
        self._rebuilt.append(rebuilt)

    def gradients_are_reduced(self) -> None:
        self._current.reduced = True

    def may_step(self) -> bool:
        """Whether the gradients of this tick are those of all members."""
        return not self.failed

    def stepped(self) -> None:
        self._current.stepped = True
        self.step += 1

    def _checkpoint_written(self, path: str, size: int, seconds: float) -> None:
        self.rendezvous.send(messages.Checkpointed(self.worker, self.step, path, size, seconds))

    def finish(self) -> None:
        """The script has ended."""
        if self.entered and not self.replaying and self.rendezvous.is_elastic:
            self._durable.finish(self.rank)
