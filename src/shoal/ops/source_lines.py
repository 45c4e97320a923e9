"""Where in a cluster file the values of its spec stand, for messages that name a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.spec import LoadedSpec

# The place of a value, by its path in the spec; empty where none is known.
PlaceOf = Callable[[tuple[str, ...]], str]


def nowhere(path: tuple[str, ...]) -> str:
    """The places of a spec for which no file is at hand."""
    return ""


def source_lines(loaded: LoadedSpec) -> PlaceOf:
    """The lines of a file that was read."""

    def place(path: tuple[str, ...]) -> str:
        origin = loaded.origin_of(*path) if path else None
        return str(origin) if origin is not None and origin.kind in ("file", "legacy") else ""

    return place
