"""A sweep as a YAML file, with the names of the command line's options:

    script: train.py
    grid: {lr: [0.1, 0.01], seed: 1..10}
    random: {dropout: "uniform(0, 0.5)"}
    samples: 20
    cpus: 2
    time_limit: 1h

Paths in it are relative to the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from shoal.core.errors import ConfigError
from shoal.jobs.sweep.space import Distribution, parse_distribution, parse_values

_NUMBERS = ("samples", "random_seed", "cpus", "gpus", "retries", "max_failures", "output_limit",
            "artifact_limit")  # fmt: skip
_PATHS = ("script", "code", "requirements", "output")
_TEXTS = ("cluster", "style", "template", "time_limit")
_KEYS = (*_PATHS, *_TEXTS, *_NUMBERS, "grid", "random", "arguments")


def read_sweep_file(path: Path) -> dict[str, Any]:
    """The options of the file: paths as `Path`, `grid` as lists and `random` as distributions."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=error.strerror or str(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML", why=str(error)) from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} is not a sweep", fix="it has to begin with: script: train.py")
    for name in content:
        if name not in _KEYS:
            close = get_close_matches(str(name), _KEYS, n=1)
            fix = f"did you mean {close[0]}?" if close else f"use {', '.join(_KEYS)}"
            raise ConfigError(f"{path}: unknown setting {name}", fix=fix)
    options = {name: _checked(path, name, value) for name, value in content.items()}
    for name in _PATHS:
        if name in options:
            options[name] = path.parent / options[name]
    if "cluster" in options and (path.parent / options["cluster"]).is_file():
        options["cluster"] = str(path.parent / options["cluster"])
    return options


def _checked(path: Path, name: str, value: Any) -> Any:
    if name == "grid":
        return {str(k): _values(str(k), v) for k, v in _mapping(path, name, value).items()}
    if name == "random":
        return {str(k): _distribution(path, k, v) for k, v in _mapping(path, name, value).items()}
    if name == "arguments":
        if isinstance(value, str) or not isinstance(value, list):
            raise ConfigError(f"{path}: {name} must be a list")
        return tuple(str(item) for item in value)
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise ConfigError(f"{path}: {name} must be a number, not {value!r}")
        return value
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise ConfigError(f"{path}: {name} must be text, not {value!r}")
    return str(value)


def _mapping(path: Path, name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: {name} must have a parameter on each line, not {value!r}")
    return value


def _values(name: str, value: Any) -> list[Any]:
    """A list as it is, and text as on the command line. YAML takes 1e-3 for text: it is a
    number here."""
    if isinstance(value, str):
        return parse_values(name, value)
    if isinstance(value, list):
        return [
            v for item in value for v in (parse_values(name, item) if _is_number(item) else [item])
        ]
    return [value]


def _is_number(item: Any) -> bool:
    return isinstance(item, str) and isinstance(parse_values("", item or "''")[0], float)


def _distribution(path: Path, name: Any, value: Any) -> Distribution:
    if not isinstance(value, str):
        raise ConfigError(f"{path}: random: {name} must be a distribution, such as uniform(0,1)")
    return parse_distribution(str(name), value)
