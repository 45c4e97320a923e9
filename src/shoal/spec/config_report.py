"""The output of `shoal config`: a cluster file as Shoal reads it, with the origin of each value.
Its text is a cluster file itself, which loads as the same spec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shoal.spec.loading import LoadedSpec
from shoal.spec.problems import KeyPath
from shoal.spec.serialization import to_json
from shoal.spec.spec_draft import DEFAULT, Draft, Origin

_INDENT = "  "


def outline(loaded: LoadedSpec) -> Iterator[tuple[str, str]]:
    """The lines of the file with its defaults, each with the origin of its value."""
    assert loaded.draft is not None
    for line, origin in _outline(loaded.draft, _with_limits(loaded), (), 0):
        if line.startswith("upscaling_speed:"):
            origin = _origin(loaded, ("scaling", "upscaling_speed"))
        yield line, origin


def report(loaded: LoadedSpec) -> dict[str, Any]:
    """The spec as JSON data: `file` are the settings in the keys of a cluster file; `origins` has
    the shape of `spec`, with an origin for each value."""
    spec = to_json(loaded.spec)
    return {
        "source": loaded.source,
        "file": _with_limits(loaded),
        "spec": spec,
        "origins": _origins(loaded, spec, ()),
        "warnings": [
            {"what": warning.what, "why": warning.why, "line": warning.line}
            for warning in loaded.warnings
        ],
        "unsupported": [str(problem) for problem in loaded.unsupported],
    }


def _with_limits(loaded: LoadedSpec) -> dict[str, Any]:
    """The file's data, with values that the file may leave out and that follow from others: the
    limits of each node type, and the upscaling speed."""
    assert loaded.draft is not None
    types = {
        name: {
            **data,
            "min_workers": loaded.spec.node_types[name].min_workers,
            "max_workers": loaded.spec.node_types[name].max_workers,
        }
        for name, data in loaded.draft.get("available_node_types").items()
    }
    speed = loaded.spec.scaling.upscaling_speed
    return {**loaded.draft.data, "available_node_types": types, "upscaling_speed": speed}


def _outline(draft: Draft, value: Any, path: KeyPath, depth: int) -> Iterator[tuple[str, str]]:
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        inner_path: KeyPath = (*path, key)
        label = _INDENT * depth + ("-" if isinstance(key, int) else f"{_text(key)}:")
        if isinstance(inner, (dict, list)) and inner:
            yield label, ""
            yield from _outline(draft, inner, inner_path, depth + 1)
        else:
            yield f"{label} {_text(inner)}", _shown(_draft_origin(draft, inner_path))


def _draft_origin(draft: Draft, path: KeyPath) -> Origin:
    is_limit = len(path) == 3 and path[-1] in ("min_workers", "max_workers")
    if is_limit and not draft.has(*map(str, path)):
        return DEFAULT
    return draft.origin(*path)


def _origins(loaded: LoadedSpec, value: Any, path: KeyPath) -> Any:
    if isinstance(value, dict) and value:
        return {key: _origins(loaded, inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list) and value:
        return [_origins(loaded, inner, (*path, i)) for i, inner in enumerate(value)]
    return _origin(loaded, path)


def _origin(loaded: LoadedSpec, path: KeyPath) -> str:
    origin = loaded.origin_of(*path)
    return "" if origin is None else _shown(origin)


def _shown(origin: Origin) -> str:
    # Every line names the file: its base name is enough.
    return str(replace(origin, source=origin.source.rsplit("/", 1)[-1]))


def _text(value: Any) -> str:
    """A scalar, or an empty mapping or list, as YAML."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, str) and _is_plain(value):
        return value
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    """Whether YAML reads this text, without quotes, as itself."""
    import yaml  # `shoal config` has loaded it to read the file

    if not text.isprintable():
        return False
    try:
        return bool(yaml.safe_load(f"key: {text}") == {"key": text}) and not text.endswith(":")
    except yaml.YAMLError:
        return False
