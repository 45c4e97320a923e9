"""A cluster file while it is resolved: plain data, and the origin of every value.

Overrides, legacy keys, provider rules and defaults are applied to a draft one after the other; then
it has a value for every current key. A draft does not know what the keys mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoal.spec.problems import KeyPath, Problem, SpecWarning


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a line of the file, a legacy key (`detail` is the key), the command
    line, or a default (`detail` is the provider)."""

    kind: Literal["file", "legacy", "command line", "default"]
    detail: str = ""
    source: str = ""
    line: int | None = None

    def __str__(self) -> str:
        location = self.source if self.line is None else f"{self.source}:{self.line}"
        if self.kind == "file":
            return location
        if self.kind == "legacy":
            return f"{location}, legacy {self.detail}"
        return f"{self.kind} {self.detail}".strip()


COMMAND_LINE = Origin("command line")
DEFAULT = Origin("default")


@dataclass
class _OriginTree:
    """Origins by path. A value without its own origin has that of the value that contains it."""

    origin: Origin | None = None
    children: dict[str | int, _OriginTree] = field(default_factory=dict)

    def at(self, path: KeyPath) -> _OriginTree:
        """The subtree at the path; created if it does not exist."""
        subtree = self
        for key in path:
            subtree = subtree.children.setdefault(key, _OriginTree())
        return subtree

    def find(self, path: KeyPath) -> Origin:
        origin = self.origin
        subtree = self
        for key in path:
            if key not in subtree.children:
                break
            subtree = subtree.children[key]
            origin = subtree.origin or origin
        return origin or DEFAULT

    def walk(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, _OriginTree]]:
        yield path, self
        for key, subtree in self.children.items():
            yield from subtree.walk((*path, key))


class Draft:
    """A cluster file's data, with origins, warnings and problems. Paths are those of current keys:
    `("available_node_types", "gpu", ...)`."""

    def __init__(self, name: str, data: dict[str, Any], lines: Mapping[KeyPath, int]) -> None:
        self.name = name
        self.data = data
        self.warnings: list[SpecWarning] = []
        self.problems: list[Problem] = []
        self._origins = _OriginTree()
        for path, line in lines.items():
            self._origins.at(path).origin = Origin("file", source=name, line=line)

    def has(self, *path: str) -> bool:
        """Whether there is a value at the path."""
        missing = object()
        return self.get(*path, default=missing) is not missing

    def get(self, *path: str, default: Any = None) -> Any:
        """The value at the path."""
        value: Any = self.data
        for key in path:
            if not isinstance(value, dict) or key not in value:
                return default
            value = value[key]
        return value

    def origin(self, *path: str | int) -> Origin:
        """Where the value at the path came from."""
        return self._origins.find(path)

    def origins_below(self, *path: str | int) -> Iterator[tuple[KeyPath, Origin]]:
        """The origins of the values inside the value at the path, by their relative paths."""
        for inner, subtree in self._origins.at(path).walk():
            if inner and subtree.origin is not None:
                yield inner, subtree.origin

    def put(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        """Set the value at the path; `origin` also applies to everything inside it."""
        parent = self.data
        for key in path[:-1]:
            parent = parent.setdefault(key, {})
        parent[path[-1]] = value
        self._origins.at(path[:-1]).children[path[-1]] = _OriginTree(origin)

    def put_missing(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        """Set the value at the path unless it has one."""
        if not self.has(*path):
            self.put(path, value, origin)

    def drop(self, *path: str) -> Any:
        """Remove the value at the path and return it."""
        parent = self.get(*path[:-1])
        value = parent.pop(path[-1], None) if isinstance(parent, dict) else None
        self._origins.at(path[:-1]).children.pop(path[-1], None)
        return value

    def move_legacy(self, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        """Move the value at a legacy path to its current path, and mark its origin as legacy."""
        subtree = self._origins.at(old)
        for _, part in subtree.walk():
            if part.origin is not None:
                part.origin = replace(part.origin, kind="legacy", detail=str(old[0]))
        self.put(new, self.drop(*old), DEFAULT)
        self._origins.at(new[:-1]).children[new[-1]] = subtree

    def warn(self, what: str, why: str, *path: str | int) -> None:
        """Add a warning: the file loads, but may not mean what its author expects."""
        line = self.origin(*path).line
        self.warnings.append(SpecWarning(self.name, what, why, path, line))

    def error(self, message: str, *path: str | int, near: KeyPath = ()) -> None:
        """Add a problem, at the line of the value at `path`; if that is missing, `near` is the path
        whose line to report."""
        origin = self.origin(*(near or path))
        source = str(origin) if origin.kind == "command line" else self.name
        self.problems.append(Problem(source, message, path, origin.line))
