"""The parameters of a sweep: the product of the grid's values, each point with a number of random
draws. Pure: the same space and seed always give the same runs.

A draw depends only on the seed, the parameter's name, the grid point and the number of the draw.
So a sweep that is extended by values or samples keeps the runs it had.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import ConfigError

Params = dict[str, Any]

MAX_RUNS = 100_000

_INT = re.compile(r"[+-]?(0|[1-9]\d*)")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")
_RANGE = re.compile(r"(?P<first>[^.]+(?:\.\d+)?)\.\.(?P<last>[^.]+(?:\.\d+)?)(?:\.\.(?P<step>.+))?")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\)", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None, "none": None}
_QUOTES = "'\""
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_DISTRIBUTIONS = ("uniform(LOW,HIGH)", "loguniform(LOW,HIGH)", "randint(LOW,HIGH)", "choice(A,B)")


@dataclass(frozen=True)
class Distribution:
    """`kind` is uniform, loguniform, randint (both ends included) or choice."""

    kind: str
    arguments: tuple[Any, ...]

    def draw(self, source: random.Random) -> Any:
        if self.kind == "choice":
            return source.choice(self.arguments)
        low, high = self.arguments
        if self.kind == "randint":
            return source.randint(low, high)
        if self.kind == "loguniform":
            drawn = math.exp(source.uniform(math.log(low), math.log(high)))
            return min(max(drawn, low), high)
        return source.uniform(low, high)


@dataclass(frozen=True)
class Space:
    """`samples` is the number of draws for each point of the grid."""

    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    random: Mapping[str, Distribution] = field(default_factory=dict)
    samples: int = 0
    seed: int = 0

    def size(self) -> int:
        points = math.prod(len(values) for values in self.grid.values())
        return points * (self.samples if self.random else 1)

    def runs(self) -> list[Params]:
        """The parameters of each run, without duplicates. Raises `ConfigError` for a space that
        makes no sense."""
        self._check()
        runs: dict[str, Params] = {}
        for values in itertools.product(*self.grid.values()):
            point = dict(zip(self.grid, values, strict=True))
            for number in range(self.samples if self.random else 1):
                params = {**point, **self._draws(point, number)}
                runs.setdefault(key(params), params)
        return list(runs.values())

    def _draws(self, point: Params, number: int) -> Params:
        return {
            name: distribution.draw(random.Random(f"{self.seed} {name} {key(point)} {number}"))
            for name, distribution in self.random.items()
        }

    def _check(self) -> None:
        if both := sorted(set(self.grid) & set(self.random)):
            raise ConfigError(f"parameter {both[0]} is in both --grid and --random")
        if self.random and self.samples < 1:
            raise ConfigError(
                "--random needs --samples",
                why="a distribution has no end",
                fix="add --samples N: the number of draws for each point of the grid",
            )
        if self.samples and not self.random:
            raise ConfigError(
                "--samples needs --random",
                why="without a distribution all samples are equal",
                fix="to repeat runs, sweep a seed: --grid seed=1..N",
            )
        if self.size() > MAX_RUNS:
            raise ConfigError(
                f"the sweep has {self.size():,} runs",
                why=f"at most {MAX_RUNS:,} are supported",
                fix="use fewer values\nor draw some of them: --random 'NAME=choice(A,B)' "
                "--samples N",
            )


def key(params: Params) -> str:
    """The identity of a run: equal for equal parameters, whatever their order."""
    return json.dumps(params, sort_keys=True, separators=(",", ":"))


def parse_grid(text: str) -> tuple[str, list[Any]]:
    """`lr=0.1,0.01` or `seed=1..10`, which includes both ends; `0..1..0.25` has a step."""
    name, values = _split_name(text, "--grid", "--grid lr=0.1,0.01")
    return name, parse_values(name, values)


def parse_values(name: str, text: str) -> list[Any]:
    items = _split(text)
    if not items or any(not item for item in items):
        raise ConfigError(f"parameter {name} has an empty value in {text!r}", fix="quote it: ''")
    values: list[Any] = []
    for item in items:
        if ".." in item and (match := _RANGE.fullmatch(item)):
            ends = [_number(match[part]) for part in ("first", "last")]
            step = _number(match["step"]) if match["step"] is not None else 1
            if None not in (*ends, step):
                values += _range(name, item, ends[0], ends[1], step)
                continue
        values.append(parse_value(item))
    return values


def parse_random(text: str) -> tuple[str, Distribution]:
    """`dropout=uniform(0,0.5)`"""
    name, call = _split_name(text, "--random", "--random 'dropout=uniform(0,0.5)'")
    return name, parse_distribution(name, call)


def parse_distribution(name: str, text: str) -> Distribution:
    match = _CALL.fullmatch(text.strip())
    kind = match["name"] if match else ""
    if match is None or kind not in ("uniform", "loguniform", "randint", "choice"):
        raise ConfigError(
            f"parameter {name} has an unknown distribution: {text}",
            fix=f"use one of {', '.join(_DISTRIBUTIONS)}",
        )
    arguments = tuple(parse_value(item) for item in _split(match["arguments"]) if item)
    if kind == "choice":
        if not arguments:
            raise ConfigError(f"parameter {name} has no values: {text}")
        return Distribution(kind, arguments)
    numeric = int if kind == "randint" else (int, float)
    if len(arguments) != 2 or any(
        isinstance(a, bool) or not isinstance(a, numeric) for a in arguments
    ):
        what = "whole numbers" if kind == "randint" else "numbers"
        raise ConfigError(f"parameter {name}: {kind} needs two {what}, not {text}")
    low, high = arguments
    if low > high:
        raise ConfigError(f"parameter {name}: {low} is greater than {high} in {text}")
    if kind == "loguniform" and low <= 0:
        raise ConfigError(f"parameter {name}: loguniform needs a LOW above 0, not {text}")
    return Distribution(kind, arguments)


def parse_value(text: str) -> Any:
    """A number, true, false, null, a quoted string, a list like [64,64], or else the text as it
    is. `007` and `1_000` stay text."""
    text = text.strip()
    if len(text) >= 2 and text[0] in _QUOTES and text[-1] == text[0]:
        return text[1:-1]
    if text.startswith("[") and text.endswith("]"):
        return [parse_value(item) for item in _split(text[1:-1]) if item]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    number = _number(text)
    return text if number is None else number


def _number(text: str) -> int | float | None:
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else None


def _range(name: str, text: str, first: Any, last: Any, step: Any) -> list[Any]:
    if step <= 0 or first > last:
        raise ConfigError(
            f"parameter {name}: {text} is empty",
            why="a range goes up, by a step above 0",
            fix="write FIRST..LAST or FIRST..LAST..STEP",
        )
    # The small part lets 0..1..0.1 include 1.
    count = math.floor((last - first) / step + 1e-9) + 1
    if count > MAX_RUNS:
        raise ConfigError(f"parameter {name}: {text} has {count:,} values", why="too many")
    values = [first + number * step for number in range(count)]
    return [round(v, 12) if isinstance(v, float) else v for v in values]


def _split_name(text: str, option: str, example: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not name.strip() or not equals:
        raise ConfigError(f"{option} {text} has no NAME=", fix=f"for example: {example}")
    return name.strip(), rest


def _split(text: str) -> list[str]:
    """Split at the commas that are outside of brackets and quotes."""
    parts, current, closing, quote = [], "", [], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _BRACKETS:
            closing.append(_BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == "," and not closing:
            parts.append(current.strip())
            current = ""
            continue
        current += character
    return [*parts, current.strip()] if text.strip() else []
