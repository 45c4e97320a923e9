"""The output of `shoal config`: every value of a loaded spec with its origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shoal.spec.loading import LoadedSpec
from shoal.spec.problems import KeyPath
from shoal.spec.serialization import to_json

_INDENT = "  "


def outline(loaded: LoadedSpec) -> Iterator[tuple[str, str]]:
    """The spec as indented lines, each with the origin of its value."""
    yield from _outline(loaded, to_json(loaded.spec), (), 0)


def report(loaded: LoadedSpec) -> dict[str, Any]:
    """The spec as JSON data: `origins` has the shape of `spec`, with an origin for each value."""
    spec = to_json(loaded.spec)
    return {
        "source": loaded.source,
        "spec": spec,
        "origins": _origins(loaded, spec, ()),
        "warnings": [
            {"what": warning.what, "why": warning.why, "line": warning.line}
            for warning in loaded.warnings
        ],
        "unsupported": [str(problem) for problem in loaded.unsupported],
    }


def _outline(
    loaded: LoadedSpec, value: Any, path: KeyPath, depth: int
) -> Iterator[tuple[str, str]]:
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        inner_path: KeyPath = (*path, key)
        label = _INDENT * depth + ("-" if isinstance(key, int) else f"{key}:")
        if isinstance(inner, (dict, list)) and inner:
            yield label, ""
            yield from _outline(loaded, inner, inner_path, depth + 1)
        else:
            yield f"{label} {_text(inner)}", _origin(loaded, inner_path)


def _origins(loaded: LoadedSpec, value: Any, path: KeyPath) -> Any:
    if isinstance(value, dict) and value:
        return {key: _origins(loaded, inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list) and value:
        return [_origins(loaded, inner, (*path, i)) for i, inner in enumerate(value)]
    return _origin(loaded, path)


def _origin(loaded: LoadedSpec, path: KeyPath) -> str:
    origin = loaded.origin_of(*path)
    if origin is None:
        return ""
    # Every line names the file: its base name is enough.
    return str(replace(origin, source=origin.source.rsplit("/", 1)[-1]))


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str) and value and value.isprintable() and value == value.strip():
        return value
    return json.dumps(value)
