"""A cluster file on its way to a spec: plain data, and for every value where it came from.

The layers (command line, legacy fields, a provider's needs, defaults) write to a draft in turn;
when the last is done it holds only today's keys, all of them. Nothing here knows what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoal.spec.problems import KeyPath, Problem, SpecWarning


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a line of the file, perhaps through a legacy key, the command
    line, or a default (`detail` says whose)."""

    kind: Literal["file", "legacy", "command line", "default"]
    detail: str = ""
    source: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        if self.kind == "file":
            return place
        if self.kind == "legacy":
            return f"{place}, legacy {self.detail}"
        return f"{self.kind} {self.detail}".strip()


COMMAND_LINE = Origin("command line")
DEFAULT = Origin("default")


@dataclass
class _Tree:
    """Origins by path; what has none of its own comes from where the thing that holds it does."""

    origin: Origin | None = None
    below: dict[str | int, _Tree] = field(default_factory=dict)

    def at(self, path: KeyPath) -> _Tree:
        """The branch for the path, grown if need be."""
        branch = self
        for key in path:
            branch = branch.below.setdefault(key, _Tree())
        return branch

    def find(self, path: KeyPath) -> Origin:
        origin = self.origin
        branch = self
        for key in path:
            if key not in branch.below:
                break
            branch = branch.below[key]
            origin = branch.origin or origin
        return origin or DEFAULT

    def walk(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, _Tree]]:
        yield path, self
        for key, branch in self.below.items():
            yield from branch.walk((*path, key))


class Draft:
    """See the module. Paths are those of today's file: `("available_node_types", "gpu", ...)`."""

    def __init__(self, name: str, data: dict[str, Any], lines: Mapping[KeyPath, int]) -> None:
        self.name = name
        self.data = data
        self.warnings: list[SpecWarning] = []
        self.problems: list[Problem] = []
        self._origins = _Tree()
        for path, line in lines.items():
            self._origins.at(path).origin = Origin("file", source=name, line=line)

    def has(self, *path: str) -> bool:
        """Whether anything stands at the path."""
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
        """The origins of the parts of the value at the path, by their paths inside of it."""
        for inner, branch in self._origins.at(path).walk():
            if inner and branch.origin is not None:
                yield inner, branch.origin

    def put(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        """Set the value at the path, with all that is below it, to come from `origin`."""
        holder = self.data
        for key in path[:-1]:
            holder = holder.setdefault(key, {})
        holder[path[-1]] = value
        self._origins.at(path[:-1]).below[path[-1]] = _Tree(origin)

    def put_missing(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        """Set the value unless there is one."""
        if not self.has(*path):
            self.put(path, value, origin)

    def drop(self, *path: str) -> Any:
        """Take away the value at the path, and return it."""
        holder = self.get(*path[:-1])
        value = holder.pop(path[-1], None) if isinstance(holder, dict) else None
        self._origins.at(path[:-1]).below.pop(path[-1], None)
        return value

    def move_legacy(self, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        """Put what stands at a legacy path to its place of today; it stays known as legacy."""
        branch = self._origins.at(old)
        for _, part in branch.walk():
            if part.origin is not None:
                part.origin = replace(part.origin, kind="legacy", detail=str(old[0]))
        self.put(new, self.drop(*old), DEFAULT)
        self._origins.at(new[:-1]).below[new[-1]] = branch

    def warn(self, what: str, why: str, *path: str | int) -> None:
        """Note something that loads, but not as its writer may think."""
        line = self.origin(*path).line
        self.warnings.append(SpecWarning(self.name, what, why, path, line))

    def refuse(self, message: str, *path: str | int, near: KeyPath = ()) -> None:
        """Note a mistake, at the line where the value at the path was written, or, of a value
        that is missing, where the one at `near` was."""
        origin = self.origin(*(near or path))
        source = str(origin) if origin.kind == "command line" else self.name
        self.problems.append(Problem(source, message, path, origin.line))
