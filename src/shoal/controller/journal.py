"""The journal on disk: one JSON object per line, written before what it announces happens.

A crash can tear only the last line, which is then skipped. Any other unreadable line is damage; it
is counted and skipped too, because the provider's list supplies what is missing.

A full disk must not stop the controller: entries that cannot be written are kept in memory and
written when there is space. Only launches wait for that: see `ensure_writable`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from shoal.controller.history import History
from shoal.controller.lifecycle import Node
from shoal.controller.paths import USAGE_LEDGER
from shoal.controller.state import (
    Blocked,
    ControllerState,
    Decision,
    Entry,
    Failure,
    LaunchIntent,
    NodeUpdated,
    from_line,
    to_line,
)
from shoal.core.atomic_write import write_atomically
from shoal.core.logs import suppress_and_log
from shoal.core.node_phase import Phase
from shoal.costs.ledger import UsageLedger

_log = logging.getLogger(__name__)

_COMPACT_BYTES = 4_000_000
# A decision that was not repeated for this long is recorded again.
_DEDUPLICATION_SECONDS = 60.0


class Journal:
    """A `ControllerState` that survives its process. Only one process may have it open.

    state:       the sum of all entries, in memory
    unreadable:  how many lines of the file were skipped when it was opened
    entries:     how many entries were recorded since then
    error:       why the file does not contain all of `state`; empty if it does

    Every recorded entry that a person would ask about is also logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ledger = UsageLedger(path.with_name(USAGE_LEDGER))
        self._history = History(path.parent)
        self.state, self.unreadable = replay(path)
        self.entries = 0
        self.error = ""
        self._file: IO[bytes] | None = None
        self._deduplicator: DecisionDeduplicator | None = None
        # Rewrites the file, so that nothing is ever appended to a torn line.
        self.ensure_writable()

    def record(self, *entries: Entry) -> None:
        """Apply entries to the state, and return when they are on the disk or cannot be written."""
        self._history.record(entries, self.state)
        for entry in entries:
            _log_entry(entry, self.state)
            self.state.apply(entry)
            self.entries += 1
        if self._file is not None:
            self._append("".join(to_line(entry) + "\n" for entry in entries).encode())
        self._ledger.record_nodes(entry.node for entry in entries if isinstance(entry, NodeUpdated))

    def record_new(self, decisions: Sequence[Decision], now: float) -> None:
        """Record those decisions that differ from the last one about their subject."""
        if self._deduplicator is None:
            self._deduplicator = DecisionDeduplicator(self.state.decisions, now)
        if new := self._deduplicator.new_only(decisions, now):
            self.record(*new)

    def ensure_writable(self) -> bool:
        """Whether the file contains the whole state; if it did not, try again to write it."""
        if self._file is None:
            try:
                self._compact()
                self._file = self._path.open("ab", buffering=0)
            except OSError as error:
                self._on_write_error(error)
            else:
                if self.error:
                    _log.info("the journal can be written again")
                self.error = ""
        return self._file is not None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append(self, lines: bytes) -> None:
        assert self._file is not None
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
            if self._file.tell() > _COMPACT_BYTES:
                self._close_file()
                self.ensure_writable()
        except OSError as error:
            self._close_file()  # its last line may be torn, so the file is rewritten
            self._on_write_error(error)

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress_and_log(_log, "close the journal", OSError):
                self._file.close()
        self._file = None

    def _on_write_error(self, error: OSError) -> None:
        text = f"no instances are launched: could not write {self._path}: {error.strerror}"
        if text != self.error:
            _log.warning("%s", text)
        self.error = text

    def _compact(self) -> None:
        lines = "".join(f"{to_line(entry)}\n" for entry in self.state.entries())
        write_atomically(self._path, lines, fsync=True)


class DecisionDeduplicator:
    """The last decision about every subject, and when it was last made."""

    def __init__(self, decisions: Iterable[Decision], now: float) -> None:
        self._last = {decision.subject: (decision, now) for decision in decisions}

    def new_only(self, decisions: Iterable[Decision], now: float) -> list[Decision]:
        """Those that differ from the last one about their subject. Of decisions with a cause the
        text may differ, since it contains numbers that change all the time."""
        recent = (e for e in self._last.items() if now - e[1][1] < _DEDUPLICATION_SECONDS)
        self._last = dict(recent)
        new = []
        for decision in decisions:
            last, _ = self._last.get(decision.subject, (None, now))
            if last is None or not _is_same(last, decision):
                new.append(decision)
            self._last[decision.subject] = (decision, now)
        return new


def _is_same(last: Decision, decision: Decision) -> bool:
    if (last.action, last.cause) != (decision.action, decision.cause):
        return False
    return bool(last.cause) or last.why == decision.why


def replay(path: Path) -> tuple[ControllerState, int]:
    """The state in a journal file, and how many of its lines are unreadable."""
    state = ControllerState()
    unreadable = 0
    for line in _lines(path):
        try:
            state.apply(from_line(line))
        except ValueError:
            unreadable += 1
    return state, unreadable


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    yield from (line for line in text.split("\n") if line)


def _log_entry(entry: Entry, state: ControllerState) -> None:
    """Log an entry, before it is applied to the state."""
    if isinstance(entry, Decision):
        _log.info("%s %s: %s", entry.action, entry.subject, entry.why)
    elif isinstance(entry, NodeUpdated):
        _log_phase(entry.node, state.nodes.get(entry.node.id))
    elif isinstance(entry, LaunchIntent):
        where = f"{entry.market} {entry.zone}".strip()
        _log.info("launching %d x %s (%s)", entry.count, entry.node_type, where)
    elif isinstance(entry, Failure):
        failure = entry.failure
        _log.info("backing off from %s (%s): %s", failure.node_type, failure.kind, entry.text)
    elif isinstance(entry, Blocked):
        _log.warning("%s is not launched again: %s", entry.node_type, entry.why)


def _log_phase(node: Node, before: Node | None) -> None:
    if before is None or before.phase is not node.phase:
        previous = before.phase if before is not None else "new"
        level = logging.WARNING if node.phase is Phase.FAILED else logging.INFO
        detail = f": {node.detail}" if node.detail else ""
        _log.log(level, "%s (%s) %s -> %s%s", node.name, node.id, previous, node.phase, detail)
