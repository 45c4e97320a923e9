"""Checks each `node_config` against Google's own description of an instance, so that a misspelt key
or a value of the wrong type is reported with its place before anything reads it. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

# Keys that Ray added to those of an instance, or that it documents and ignores.
_RAY_KEYS = ("sourceInstanceTemplate", "KeyName")
# What Ray's TPU nodes have. They are another service's.
_TPU_KEYS = ("acceleratorConfig", "acceleratorType", "runtimeVersion")
_CHECK = "node-config"
_WHAT = "node_config cannot be passed to Compute Engine"
_Path = tuple[str, ...]


def check_node_configs(spec: ClusterSpec) -> list[Finding]:
    """The problems of every node type."""
    return [
        finding
        for name, node_type in spec.node_types.items()
        for finding in _check(name, node_type.node_config)
    ]


def _check(name: str, config: Mapping[str, Any]) -> list[Finding]:
    at = ("node_types", name, "node_config")
    tpu = [key for key in _TPU_KEYS if key in config]
    if tpu:
        return [
            Finding(
                "error",
                "TPU nodes of the Cloud TPU service are not supported",
                why=f"node_config has {', '.join(tpu)}",
                fix="use a machine type with TPUs: machineType: ct5lp-hightpu-1t",
                at=(*at, tpu[0]),
                check=_CHECK,
            )
        ]
    request = {k: v for k, v in config.items() if k not in _RAY_KEYS and v is not None}
    return [
        Finding("error", what, why, fix, _place(at, path, config), _CHECK)
        for path, what, why, fix in _problems(request, "Instance", ())
    ]


def _place(at: _Path, path: _Path, config: Any) -> _Path:
    """The place of a problem in the file; a key within a list has none, so it is the list's."""
    place: list[str] = []
    for key in path:
        if not isinstance(config, Mapping) or key not in config:
            break
        place.append(key)
        config = config[key]
    return (*at, *place)


# A path, what is wrong there, why, and the fix.
_Problem = tuple[_Path, str, str, str]


def _problems(value: Any, expected: Any, path: _Path) -> Iterator[_Problem]:
    key = path[-1] if path else "node_config"
    if value is None or expected in ("any", "object"):
        return
    if isinstance(expected, list):
        if not isinstance(value, list):
            fix = f"write it as a list: {key}: [...]"
            yield path, f"{_WHAT}: {_text(path)}", f"{key} is not a list", fix
            return
        for index, item in enumerate(value):
            yield from _problems(item, expected[0], (*path, str(index)))
    elif isinstance(expected, dict) or expected in _fields():
        # Google accepts a list of one where one is expected, and Ray's examples have such.
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, Mapping):
                why = f"{key} is {value!r}, and not a mapping"
                yield path, f"{_WHAT}: {_text(path)}", why, _keys_of(key, expected)
                return
            yield from _entries(entry, expected, path)
    elif not _fits(value, expected):
        article = "an" if expected[0] in "aeiou" else "a"
        why = f"{key} is {value!r}, and not {article} {expected}"
        fix = f'{key}: "{value}"' if expected == "string" else f"{key}: {_EXAMPLES[expected]}"
        yield path, f"{_WHAT}: {_text(path)}", why, fix


def _entries(entry: Mapping[str, Any], expected: Any, path: _Path) -> Iterator[_Problem]:
    fields = {} if isinstance(expected, dict) else _fields()[expected]
    for key, value in entry.items():
        if isinstance(expected, dict):
            yield from _problems(value, expected["*"], (*path, str(key)))
        elif key in fields:
            yield from _problems(value, fields[key], (*path, key))
        else:
            similar = difflib.get_close_matches(str(key), fields, n=1)
            where = f"in {_text(path)}" if path else "of an instance"
            fix = f"replace {key} by {similar[0]}" if similar else f"remove {key}"
            what = f"{_WHAT}: {_text((*path, str(key)))}"
            yield (*path, str(key)), what, f"Compute Engine has no field {key} {where}", fix


def _keys_of(key: str, expected: Any) -> str:
    if isinstance(expected, dict):
        return f"{key}: {{name: value}}"
    return f"{key}: {{...}}, with keys among {', '.join(sorted(_fields()[expected])[:6])}"


_EXAMPLES = {"boolean": "true", "number": "1"}


def _fits(value: Any, expected: str) -> bool:
    """Whether Google accepts a value: also a number or a boolean that is written as text."""
    text = str(value).lower()
    if expected == "boolean":
        return isinstance(value, bool) or text in ("true", "false")
    if expected == "number":
        return not isinstance(value, bool) and text.lstrip("-").isdigit()
    return isinstance(value, str)


def _text(path: _Path) -> str:
    """A path as it is written: `disks[0].boot`."""
    text = ""
    for key in path:
        text += f"[{key}]" if key.isdigit() else f".{key}" if text else key
    return text


@cache
def _fields() -> Mapping[str, Mapping[str, Any]]:
    package = resources.files("shoal.providers.gcp.preflight")
    fields: Mapping[str, Mapping[str, Any]] = json.loads(
        package.joinpath("instance_fields.json").read_text("utf-8")
    )
    return fields
