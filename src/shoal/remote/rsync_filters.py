"""Which files rsync would send: its exclude patterns and per-directory filter files.

Ray passes each `rsync_exclude` as `--exclude PATTERN` and each `rsync_filter` as
`--filter 'dir-merge,- FILE'`. What decides whether files changed must leave out the same ones,
or editing an excluded file would restart a cluster. The tests hold this against rsync itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_WILD = re.compile(r"[*?\[]")
_POSIX_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "digit": "0-9",
    "lower": "a-z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}


@dataclass(frozen=True)
class Rule:
    """One pattern, ready to match."""

    regex: re.Pattern[str]
    by_name: bool
    dirs_only: bool
    includes: bool = False

    def matches(self, path: str, is_dir: bool) -> bool:
        """Whether the rule is about this path, given relative to the top of the transfer."""
        if self.dirs_only and not is_dir:
            return False
        if self.by_name:
            return self.regex.fullmatch(path.rpartition("/")[2]) is not None
        # `dir/***` means the directory itself, too: it is also tried with a slash at its end.
        spellings = (f"/{path}", f"/{path}/") if is_dir else (f"/{path}",)
        return any(self.regex.fullmatch(spelling) for spelling in spellings)


@dataclass(frozen=True)
class Rules:
    """What to leave out: patterns for the whole transfer, and names of files that hold more
    patterns for the directory they are in and all below it."""

    patterns: tuple[Rule, ...] = ()
    filter_files: tuple[str, ...] = ()
    inherited: tuple[Rule, ...] = field(default=())

    def excludes(self, path: str, is_dir: bool) -> bool:
        """Whether rsync would leave this path out. Patterns come first, and the first that
        matches decides; filter files can only exclude."""
        for rule in self.patterns:
            if rule.matches(path, is_dir):
                return not rule.includes
        return any(rule.matches(path, is_dir) for rule in self.inherited)

    def inside(self, directory: Path, path: str) -> Rules:
        """The rules for what is in a directory of the transfer, its filter files read."""
        found = [
            compile_rule(pattern, base=path)
            for name in self.filter_files
            for pattern in _lines(directory / name)
        ]
        return Rules(self.patterns, self.filter_files, (*found, *self.inherited))


def rules(excludes: Sequence[str], filter_files: Sequence[str]) -> Rules:
    """The rules of a cluster file's `rsync_exclude` and `rsync_filter`."""
    patterns: list[Rule] = []
    for text in excludes:
        if text == "!":
            patterns.clear()
        elif text.startswith(("+ ", "- ")):
            patterns.append(compile_rule(text[2:], includes=text[0] == "+"))
        elif text:
            patterns.append(compile_rule(text))
    return Rules(tuple(patterns), tuple(name.lstrip("/") for name in filter_files if name))


def compile_rule(pattern: str, *, base: str = "", includes: bool = False) -> Rule:
    """One of rsync's patterns. Without a slash (but for the last character) and without `**` it
    is about names, else about whole paths; with a slash in front it starts at `base`."""
    dirs_only = len(pattern) > 1 and pattern.endswith("/")
    if dirs_only:
        pattern = pattern[:-1]
    if base and pattern.startswith("/"):
        # As rsync does it, so that a directory's name with a wildcard in it means the same here.
        pattern = f"/{base}{pattern}"
    wild = _WILD.search(pattern) is not None
    deep = wild and "**" in pattern
    body = _regex(pattern.removeprefix("/")) if wild else re.escape(pattern.removeprefix("/"))
    by_name = "/" not in pattern and not deep
    if by_name:
        text = body
    elif pattern.startswith("/"):
        text = f"/{body}"
    elif deep and pattern.startswith("**"):
        text = body
    else:
        text = f"/(?:.*/)?{body}" if deep else f".*/{body}"
    # Only a pattern that ends in `***` may take a directory's closing slash.
    closing = "" if pattern.endswith("***") else "(?<!/)"
    return Rule(re.compile(text + closing, re.DOTALL), by_name, dirs_only, includes)


def sent(root: Path, of: Rules) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything in the directory that rsync would send, with its path inside, in order."""
    waiting = [(root, "", of)]
    while waiting:
        directory, prefix, current = waiting.pop()
        current = current.inside(directory, prefix)
        with os.scandir(directory) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            is_dir = entry.is_dir(follow_symlinks=False)
            if current.excludes(path, is_dir):
                continue
            yield path, entry
            if is_dir:
                waiting.append((Path(entry.path), path, current))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    text = os.fsdecode(path.read_bytes())
    return [line for line in re.split("[\r\n]", text) if line and line[0] not in "#;"]


def _regex(pattern: str) -> str:
    """Wildcards: `*` and `?` stop at a slash, `**` does not; a class never matches a slash."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            stars = len(pattern) - at - len(pattern[at:].lstrip("*")) + 1
            at += stars - 1
            out.append(".*" if stars > 1 else "[^/]*")
        elif character == "?":
            out.append("[^/]")
        elif character == "[":
            text, at = _character_class(pattern, at)
            out.append(text)
        elif character == "\\" and at < len(pattern):
            out.append(re.escape(pattern[at]))
            at += 1
        else:
            out.append(re.escape(character))
    return "".join(out)


def _character_class(pattern: str, at: int) -> tuple[str, int]:
    """The class that starts after the bracket at `at`, and where it ends. One without an end
    matches nothing."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    out: list[str] = []
    first = True
    while at < len(pattern) and (first or pattern[at] != "]"):
        first = False
        named = re.match(r"\[:([a-z]+):\]", pattern[at:])
        if named and named[1] in _POSIX_CLASSES:
            out.append(_POSIX_CLASSES[named[1]])
            at += named.end()
            continue
        low, at = _class_member(pattern, at)
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            high, at = _class_member(pattern, at + 1)
            if low <= high:
                out.append(f"{re.escape(low)}-{re.escape(high)}")
        out.append(re.escape(low))
    if at >= len(pattern):
        return "(?!)", at
    members = "".join(out)
    if negated:
        return f"[^/{members}]", at + 1
    return (f"(?!/)[{members}]" if members else "(?!)"), at + 1


def _class_member(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\" and at + 1 < len(pattern):
        at += 1
    return pattern[at], at + 1
