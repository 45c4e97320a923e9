"""Parses YAML text into plain data with the line of every value.

The result only has what JSON can express: mappings with string keys, lists, strings, finite
numbers, booleans and null. Aliases and merge keys are expanded. Size and depth are limited, so that
no text can exhaust memory or the stack. Nothing here knows what a cluster is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from shoal.spec.problems import KeyPath, Problem, SpecError, SpecWarning, dotted
from shoal.spec.yaml_source import YamlText

DEPTH_LIMIT = 60
VALUE_LIMIT = 50_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG_PREFIX = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Document:
    """A parsed file. `lines` has the line of each key and list item; `problems` are errors that do
    not prevent the rest from being read."""

    name: str
    data: Any
    lines: Mapping[KeyPath, int]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[SpecWarning, ...] = ()


def parse(source: YamlText) -> Document:
    """The only document in the text. Raises `SpecError` if the text is not valid YAML."""
    try:
        _check_events(source)
        root = yaml.compose(source.text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise SpecError([_syntax_problem(source, error)]) from None
    converter = _Converter(source.name)
    data = converter.convert(root, ()) if root is not None else None
    problems, warnings = tuple(converter.problems), tuple(converter.warnings)
    return Document(source.name, data, converter.lines, problems, warnings)


def _check_events(source: YamlText) -> None:
    """Check limits, anchors and aliases on the parser's events, before `yaml.compose`: it has no
    limit on depth and size, and accepts aliases that contain themselves."""
    anchors: set[str] = set()
    open_anchors: list[str | None] = []  # of the collections around the current event
    documents = values = 0
    for event in yaml.parse(source.text, Loader=_LOADER):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                message = "a second document starts here; a cluster file has only one"
                raise _error(source.name, message, event)
        elif isinstance(event, yaml.AliasEvent):
            alias = event.anchor
            if alias in open_anchors:
                raise _error(source.name, f"alias *{alias} contains itself", event)
            if alias not in anchors:
                message = f"alias *{alias} has no anchor &{alias} above it"
                raise _error(source.name, message, event)
        elif isinstance(event, yaml.CollectionEndEvent):
            open_anchors.pop()
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if values > 2 * VALUE_LIMIT:  # keys are counted here too
                raise _too_many_values(source.name)
            if len(open_anchors) > DEPTH_LIMIT:
                message = f"is nested more than {DEPTH_LIMIT} levels deep"
                raise _error(source.name, message, event)
            if event.anchor in anchors:
                raise _error(source.name, f"anchor &{event.anchor} is defined twice", event)
            if event.anchor:
                anchors.add(event.anchor)
            if isinstance(event, yaml.CollectionStartEvent):
                open_anchors.append(event.anchor)


class _Converter:
    """Converts composed nodes to plain data. Counts values while it expands aliases, so that a few
    nested aliases cannot become a billion values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._constructor = SafeConstructor()
        self._count = 0
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self.warnings: list[SpecWarning] = []

    def convert(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count_value()
        if len(path) > DEPTH_LIMIT:
            raise _too_many_values(self._name)
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "seq")
            return [self.convert(item, (*path, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        value = self._scalar(node)
        if isinstance(value, float) and not math.isfinite(value):
            self._add_problem("must be a finite number", path, self.lines[path])
            return 0.0
        return value

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        self._warn_of_duplicates(node, path)
        data: dict[str, Any] = {}
        for key, (line, value) in self._merged_entries(node).items():
            value_path: KeyPath = (*path, key)
            self.lines[value_path] = line
            data[key] = self.convert(value, value_path)
        return data

    def _warn_of_duplicates(self, node: yaml.MappingNode, path: KeyPath) -> None:
        """The last value of a duplicate key counts, as in Ray."""
        earlier_lines: dict[str, int] = {}
        for key, key_node, _ in self._own_entries(node):
            line = _line(key_node)
            if key in earlier_lines:
                key_path = (*path, key)
                what = f"{dotted(key_path)} is a duplicate key"
                why = f"this value replaces the one in line {earlier_lines[key]}"
                self.warnings.append(SpecWarning(self._name, what, why, key_path, line))
            earlier_lines[key] = line

    def _merged_entries(self, node: yaml.MappingNode) -> dict[str, tuple[int, yaml.Node]]:
        """A mapping's own entries, then those of its merge keys; earlier ones take precedence."""
        self._count_value()
        self._check_tag(node, "map")
        entries = {
            key: (_line(key_node), value) for key, key_node, value in self._own_entries(node)
        }
        for merged in self._merged_mappings(node):
            for key, entry in self._merged_entries(merged).items():
                entries.setdefault(key, entry)
        return entries

    def _own_entries(self, node: yaml.MappingNode) -> list[tuple[str, yaml.Node, yaml.Node]]:
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error(self._name, "a key must be a string", key_node)
        return [(key.value, key, value) for key, value in node.value if not _is_merge_key(key)]

    def _merged_mappings(self, node: yaml.MappingNode) -> list[yaml.MappingNode]:
        mappings = []
        for key_node, value in node.value:
            if not _is_merge_key(key_node):
                continue
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(merged, yaml.MappingNode):
                    message = "<< must refer to a mapping, or to a list of mappings"
                    raise _error(self._name, message, key_node)
                mappings.append(merged)
        return mappings

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix(_TAG_PREFIX)
        # Dates stay strings: nothing in a cluster file is a date.
        if kind in ("str", "timestamp", "value", "merge"):
            return node.value
        construct = {
            "null": self._constructor.construct_yaml_null,
            "bool": self._constructor.construct_yaml_bool,
            "int": self._constructor.construct_yaml_int,
            "float": self._constructor.construct_yaml_float,
        }.get(kind)
        if construct is None:
            raise self._bad_tag(node)
        try:
            return construct(node)
        except (ValueError, LookupError, OverflowError):
            message = f"{_clipped(node.value)} is not a value of type {kind}"
            raise _error(self._name, message, node) from None

    def _check_tag(self, node: yaml.Node, kind: str) -> None:
        if node.tag != _TAG_PREFIX + kind:
            raise self._bad_tag(node)

    def _bad_tag(self, node: yaml.Node) -> SpecError:
        tag = node.tag.replace(_TAG_PREFIX, "!!")
        return _error(self._name, f"the tag {tag} is not allowed in a cluster file", node)

    def _count_value(self) -> None:
        self._count += 1
        if self._count > VALUE_LIMIT:
            raise _too_many_values(self._name)

    def _add_problem(self, message: str, path: KeyPath, line: int) -> None:
        self.problems.append(Problem(self._name, message, path, line))


def _is_merge_key(node: yaml.Node) -> bool:
    return bool(node.tag == _TAG_PREFIX + "merge")


def _error(name: str, message: str, at: yaml.Node | yaml.Event) -> SpecError:
    return SpecError([Problem(name, message, line=_line(at))])


def _too_many_values(name: str) -> SpecError:
    message = f"has more than {VALUE_LIMIT:,} values, with aliases expanded"
    return SpecError([Problem(name, message)])


def _line(at: yaml.Node | yaml.Event) -> int:
    assert at.start_mark is not None
    return int(at.start_mark.line) + 1


def _clipped(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _syntax_problem(source: YamlText, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        reason = str(getattr(error, "reason", None) or "it has characters that YAML does not allow")
        line = source.text[: getattr(error, "position", 0)].count("\n") + 1
        return Problem(source.name, f"is not valid YAML: {' '.join(reason.split())}", line=line)
    line = mark.line + 1
    text_lines = source.text.splitlines()
    indent = ""
    if mark.line < len(text_lines):
        text = text_lines[mark.line]
        indent = text[: len(text) - len(text.lstrip())]
    if "\t" in indent:
        return Problem(source.name, "is indented with a tab; YAML allows only spaces", line=line)
    reason = getattr(error, "problem", None) or "cannot be parsed"
    return Problem(source.name, f"is not valid YAML: {' '.join(reason.split())}", line=line)
