"""What is wrong with a cluster file, in words a person can act on: file, line, path, mistake.

Every part of `spec` reports here, so that one reading of a file names all of its mistakes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ConfigError

KeyPath = tuple[str | int, ...]

_PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")


@dataclass(frozen=True)
class Problem:
    """One mistake: where it stands and what is wrong with it, with the fix when there is one."""

    source: str
    message: str
    path: KeyPath = ()
    line: int | None = None

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return "  ".join(part for part in (place, dotted(self.path), self.message) if part)


@dataclass(frozen=True)
class SpecWarning:
    """Something in the file that loads, but not as its writer may think."""

    source: str
    what: str
    why: str
    path: KeyPath = ()
    line: int | None = None

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}  {self.what}: {self.why}"


class SpecError(ConfigError):
    """A cluster file cannot be used. `problems` holds every mistake that was found in it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(
            sorted(set(problems), key=lambda p: (p.line or 0, dotted(p.path), p.message))
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))


def dotted(path: KeyPath) -> str:
    """The path as people write it: `available_node_types.gpu.resources`, `setup_commands[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def shown(value: Any) -> str:
    """A value as a message can quote it: short, on one line, in YAML's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def likely(word: str, known: Sequence[str]) -> str | None:
    """The known word that a misspelt one was probably meant to be."""
    by_folded = {_folded(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(_folded(word), list(by_folded), n=1, cutoff=0.7)
    return by_folded[close[0]] if close else None


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A clause to end a message with: the likely word, or else the choice there is."""
    guess = likely(word, known)
    if guess is not None:
        return f"; did you mean {guess!r}?"
    # A long list of everything helps no one to find one word.
    return f"; known here: {', '.join(sorted(known))}" if 0 < len(known) <= 12 else ""


def is_placeholder(value: Any) -> bool:
    """Whether this is a template's `REPLACE_THIS_WITH_YOURS` that no one has replaced yet."""
    return isinstance(value, str) and _PLACEHOLDER.fullmatch(value) is not None


def _folded(word: str) -> str:
    return word.lower().replace("-", "_")
