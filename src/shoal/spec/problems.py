"""Problems and warnings of a cluster file: each has a file, a line, a path and a message.

All checks collect problems instead of raising the first one, so that a user sees all of them at
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.errors import ConfigError

KeyPath = tuple[str | int, ...]

_PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")


@dataclass(frozen=True)
class Problem:
    """An error in a cluster file: where it is, what is wrong, and the fix if there is one."""

    source: str
    message: str
    path: KeyPath = ()
    line: int | None = None

    def __str__(self) -> str:
        location = self.source if self.line is None else f"{self.source}:{self.line}"
        return "  ".join(part for part in (location, dotted(self.path), self.message) if part)


@dataclass(frozen=True)
class SpecWarning:
    """A setting that loads, but may not mean what its author expects."""

    source: str
    what: str
    why: str
    path: KeyPath = ()
    line: int | None = None

    def __str__(self) -> str:
        location = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{location}  {self.what}: {self.why}"


class SpecError(ConfigError):
    """A cluster file is invalid. `problems` holds everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(
            sorted(set(problems), key=lambda p: (p.line or 0, dotted(p.path), p.message))
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))


def dotted(path: KeyPath) -> str:
    """The path as text: `available_node_types.gpu.resources`, `setup_commands[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def shown(value: Any) -> str:
    """A value as it is quoted in messages: short, on one line, as in YAML."""
    if value is None:
        return "null"
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


def closest(word: str, known: Sequence[str]) -> str | None:
    """The known word that a misspelt one probably stands for."""
    import difflib  # only needed for errors

    by_folded = {_folded(candidate): candidate for candidate in known}
    matches = difflib.get_close_matches(_folded(word), list(by_folded), n=1, cutoff=0.7)
    return by_folded[matches[0]] if matches else None


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown word: the closest known word, or else all of them."""
    guess = closest(word, known)
    if guess is not None:
        return f"; did you mean {guess!r}?"
    # A longer list would not help.
    return f"; expected one of: {', '.join(sorted(known))}" if 0 < len(known) <= 12 else ""


def is_placeholder(value: Any) -> bool:
    """Whether this is a placeholder of Ray's templates, such as `YOUR_HEAD_NODE_HOSTNAME`."""
    return isinstance(value, str) and _PLACEHOLDER.fullmatch(value) is not None


def _folded(word: str) -> str:
    return word.lower().replace("-", "_")
