"""What happens in the tick that is under way, and how it is undone."""

from __future__ import annotations

from typing import Any, Protocol


class Undoable(Protocol):
    """Something that a dropped step has to be undone in."""

    def mark(self) -> Any: ...
    def undo(self, mark: Any) -> None: ...


class Tick:
    def __init__(self) -> None:
        self.reduced = False  # gradients were reduced, or it was tried
        self.stepped = False
        self._is_open = False
        self._undoables: list[tuple[Undoable, Any]] = []

    def register(self, undoable: Undoable) -> None:
        self._undoables.append((undoable, None))

    def open(self) -> None:
        self.reduced = self.stepped = False
        self._is_open = True
        self._undoables = [(each, each.mark()) for each, _ in self._undoables]

    def close(self, *, failed: bool) -> bool:
        """Whether it is kept, as far as this worker can tell."""
        if not self._is_open:
            return True
        self._is_open = False
        return self.stepped or not self.reduced or not failed

    def undo(self) -> None:
        for undoable, mark in self._undoables:
            undoable.undo(mark)
