"""YAML text as plain data that remembers the line of every value.

Only what JSON can also say comes out: mappings with text keys, lists, text, finite numbers,
true, false and null. Anchors, aliases and merge keys are expanded here, within bounds, so no
text can make the program slow or deep. Nothing here knows what a cluster is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from shoal.spec.problems import KeyPath, Problem, SpecError
from shoal.spec.source import YamlText

DEPTH_LIMIT = 60
VALUE_LIMIT = 50_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    """A parsed file. `lines` has the line of each key and list item; `problems` what is wrong
    with the text without making it unreadable."""

    name: str
    data: Any
    lines: Mapping[KeyPath, int]
    problems: tuple[Problem, ...]


@dataclass
class _Node:
    """A value as written, before aliases are expanded."""

    line: int
    value: Any = None
    items: list[_Node] | None = None
    entries: list[tuple[str, int, _Node]] | None = None
    merges: list[_Node] = field(default_factory=list)
    repeated: list[tuple[str, int, int]] = field(default_factory=list)
    open: bool = False


def parse(source: YamlText) -> Document:
    """The one document in the text. Raises `SpecError` when it cannot be read as YAML at all."""
    builder = _Builder(source)
    try:
        root = builder.build()
    except yaml.YAMLError as error:
        raise SpecError([_syntax_problem(source, error)]) from None
    expansion = _Expansion(source.name)
    data = expansion.plain(root, ()) if root is not None else None
    return Document(source.name, data, expansion.lines, tuple(expansion.problems))


class _Builder:
    """Builds nodes from the parser's events, so that depth, tags and keys are checked before
    anything is constructed."""

    def __init__(self, source: YamlText) -> None:
        self._name = source.name
        self._parser = _LOADER(source.text)
        self._resolver: Any = Resolver()
        self._constructor = SafeConstructor()
        self._anchors: dict[str, _Node] = {}
        self._count = 0

    def build(self) -> _Node | None:
        try:
            self._next()  # the stream's start
            if isinstance(self._next(), yaml.StreamEndEvent):
                return None
            root = self._node(self._next(), 0)
            self._next()  # the document's end
            after = self._next()
            if not isinstance(after, yaml.StreamEndEvent):
                self._refuse(after, "a second document starts here; a cluster file has one")
            return root
        finally:
            self._parser.dispose()

    def _next(self) -> Any:
        return self._parser.get_event()

    def _refuse(self, event: Any, message: str) -> NoReturn:
        raise SpecError([Problem(self._name, message, line=_line(event))])

    def _node(self, event: Any, depth: int) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event)
        self._count += 1
        if self._count > VALUE_LIMIT:
            raise _too_many_values(self._name)
        if depth > DEPTH_LIMIT:
            self._refuse(event, f"is nested more than {DEPTH_LIMIT} levels deep")
        node = _Node(_line(event))
        if event.anchor:
            self._anchors[event.anchor] = node
        node.open = True
        if isinstance(event, yaml.ScalarEvent):
            node.value = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, "seq")
            node.items = self._items(depth)
        else:
            self._check_tag(event, "map")
            self._fill_mapping(node, depth)
        node.open = False
        return node

    def _aliased(self, event: Any) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            self._refuse(event, f"alias *{event.anchor} has no anchor &{event.anchor} above it")
        if node.open:
            self._refuse(event, f"alias *{event.anchor} contains itself")
        return node

    def _items(self, depth: int) -> list[_Node]:
        items = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return items

    def _fill_mapping(self, node: _Node, depth: int) -> None:
        node.entries = []
        seen: dict[str, int] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be plain text")
            key, line = event.value, _line(event)
            if event.anchor:
                self._anchors[event.anchor] = _Node(line, value=key)
            value = self._node(self._next(), depth + 1)
            if key == "<<" and event.implicit[0]:
                node.merges.extend(self._merged(event, value))
                continue
            if key in seen:
                node.repeated.append((key, line, seen[key]))
            seen.setdefault(key, line)
            node.entries.append((key, line, value))

    def _merged(self, event: Any, value: _Node) -> list[_Node]:
        merged = value.items if value.items is not None else [value]
        if any(node.entries is None for node in merged):
            self._refuse(event, "<< must name a mapping, or a list of mappings")
        return merged

    def _check_tag(self, event: Any, kind: str) -> None:
        if event.tag not in (None, "!", _TAG + kind):
            self._refuse(event, f"the tag {_short(event.tag)} is not allowed in a cluster file")

    def _scalar(self, event: Any) -> Any:
        tag = event.tag
        if tag == "!":
            return event.value
        if tag is None:
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
        kind = tag[len(_TAG) :] if tag.startswith(_TAG) else tag
        # A date stays the text that was written: nothing in a cluster file is a date.
        if kind in ("str", "timestamp", "value", "merge"):
            return event.value
        construct = {
            "null": self._constructor.construct_yaml_null,
            "bool": self._constructor.construct_yaml_bool,
            "int": self._constructor.construct_yaml_int,
            "float": self._constructor.construct_yaml_float,
        }.get(kind)
        if construct is None:
            self._refuse(event, f"the tag {_short(tag)} is not allowed in a cluster file")
        try:
            return construct(yaml.ScalarNode(tag, event.value))
        except (ValueError, LookupError, OverflowError):
            self._refuse(event, f"{_clipped(event.value)} is not a value of type {kind}")


class _Expansion:
    """Copies the nodes into plain data, counting, so that a few nested aliases cannot become
    a billion values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []

    def plain(self, node: _Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > VALUE_LIMIT or len(path) > DEPTH_LIMIT:
            raise _too_many_values(self._name)
        self.lines.setdefault(path, node.line)
        if node.items is not None:
            return [self.plain(item, (*path, i)) for i, item in enumerate(node.items)]
        if node.entries is not None:
            return self._mapping(node, path)
        if isinstance(node.value, float) and not math.isfinite(node.value):
            message = "must be a finite number"
            self.problems.append(Problem(self._name, message, path, self.lines[path]))
            return 0.0
        return node.value

    def _mapping(self, node: _Node, path: KeyPath) -> dict[str, Any]:
        for key, line, first in node.repeated:
            message = f"is given twice, first in line {first}"
            self.problems.append(Problem(self._name, message, (*path, key), line))
        result: dict[str, Any] = {}
        for key, (line, value) in self._merged_entries(node).items():
            below: KeyPath = (*path, key)
            self.lines[below] = line
            result[key] = self.plain(value, below)
        return result

    def _merged_entries(self, node: _Node) -> dict[str, tuple[int, _Node]]:
        """A mapping's own entries, then those it merges; what comes first wins."""
        self._count += 1
        if self._count > VALUE_LIMIT:
            raise _too_many_values(self._name)
        found: dict[str, tuple[int, _Node]] = {}
        for key, line, value in node.entries or ():
            found[key] = (line, value)
        for merged in node.merges:
            for key, entry in self._merged_entries(merged).items():
                found.setdefault(key, entry)
        return found


def _too_many_values(name: str) -> SpecError:
    return SpecError([Problem(name, f"holds more than {VALUE_LIMIT:,} values, aliases counted")])


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")


def _clipped(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _syntax_problem(source: YamlText, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        reason = str(getattr(error, "reason", None) or "it has characters that YAML does not allow")
        line = source.text[: getattr(error, "position", 0)].count("\n") + 1
        return Problem(source.name, f"is not valid YAML: {' '.join(reason.split())}", line=line)
    line = mark.line + 1
    written = source.text.splitlines()
    indent = ""
    if mark.line < len(written):
        text = written[mark.line]
        indent = text[: len(text) - len(text.lstrip())]
    if "\t" in indent:
        return Problem(source.name, "is indented with a tab; YAML allows only spaces", line=line)
    reason = getattr(error, "problem", None) or "cannot be parsed"
    return Problem(source.name, f"is not valid YAML: {' '.join(reason.split())}", line=line)
