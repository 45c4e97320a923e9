"""The `filter` of Compute Engine's listings: comparisons, `:*`, AND, OR, NOT and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.simcloud.calls import ApiError

Predicate = Callable[[Mapping[str, Any]], bool]

_TOKEN = re.compile(r'\s*(\(|\)|!=|=|:|<=|>=|<|>|"[^"]*"|[^\s()=:!<>"]+)')


class FilterRefused(Exception):
    """The filter cannot be parsed."""

    def __init__(self, text: str) -> None:
        message = f"Invalid value for field 'filter': '{text}'. Invalid list filter expression."
        super().__init__(message)
        self.error = ApiError("invalid", message, 400)


def parse_filter(text: str) -> Predicate:
    """What a resource must satisfy; an empty filter takes all."""
    if not text.strip():
        return lambda resource: True
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", "", text):
        raise FilterRefused(text)
    parser = _Parser(tokens, text)
    predicate = parser.expression()
    if parser.tokens:
        raise FilterRefused(text)
    return predicate


class _Parser:
    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens, self._text = list(tokens), text

    def expression(self) -> Predicate:
        parts = [self._conjunction()]
        while self._accept("OR"):
            parts.append(self._conjunction())
        return lambda resource: any(part(resource) for part in parts)

    def _conjunction(self) -> Predicate:
        parts = [self._factor()]
        while self._accept("AND") or (self.tokens and self.tokens[0] not in (")", "OR")):
            parts.append(self._factor())
        return lambda resource: all(part(resource) for part in parts)

    def _factor(self) -> Predicate:
        if self._accept("NOT"):
            inner = self._factor()
            return lambda resource: not inner(resource)
        if self._accept("("):
            inner = self.expression()
            if not self._accept(")"):
                raise FilterRefused(self._text)
            return inner
        return self._comparison()

    def _comparison(self) -> Predicate:
        if len(self.tokens) < 3:
            raise FilterRefused(self._text)
        field, operator, value = self.tokens[:3]
        del self.tokens[:3]
        wanted = value.strip('"')
        if operator == ":" and wanted == "*":
            return lambda resource: _read(resource, field) is not None
        if operator == ":":
            return lambda resource: wanted in str(_read(resource, field) or "")
        if operator == "=":
            return lambda resource: _read(resource, field) == wanted
        if operator == "!=":
            return lambda resource: _read(resource, field) != wanted
        raise FilterRefused(self._text)

    def _accept(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            del self.tokens[0]
            return True
        return False


def _read(resource: Mapping[str, Any], field: str) -> str | None:
    value: Any = resource
    for part in field.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return str(value)
