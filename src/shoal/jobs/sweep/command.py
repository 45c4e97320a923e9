"""How the parameters of a run reach its script: as flags, as Hydra overrides, as Sacred config
updates, or by a template. Pure, but for reading the script to see what it imports."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from shoal.core.errors import ConfigError

Style = Literal["flags", "hydra", "sacred", "template"]
STYLES = ("flags", "hydra", "sacred")

# Where Sacred's FileStorageObserver writes, relative to the directory of a run.
SACRED_DIRECTORY = "sacred_runs"

_NAMES = re.compile(r"\{([^{}]*)\}")
_PLAIN_HYDRA = re.compile(r"[A-Za-z0-9_./:@%+-]+")


def detect_style(script: Path) -> Style:
    """By what the script imports, at any level: sacred or hydra, else flags."""
    try:
        tree = ast.parse(script.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(
            f"{script.name} has a syntax error" + (f" in line {line}" if line else ""),
            why=getattr(error, "msg", str(error)),
            fix="if it is for a newer Python than this one, set --style",
        ) from None
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return "sacred" if "sacred" in modules else "hydra" if "hydra" in modules else "flags"


def arguments_of(
    style: Style,
    params: Mapping[str, Any],
    fixed: Sequence[str] = (),
    *,
    template: str = "",
    run: int = 0,
    sweep: str = "",
) -> list[str]:
    """The script's arguments for one run. `fixed` are the same for all runs and come first."""
    if style == "template":
        return [*fixed, *_from_template(template, params, run)]
    if style == "hydra":
        overrides = [f"{name}={_hydra_text(value)}" for name, value in params.items()]
        # Keeps Hydra's files in the directory of the run, instead of one named by the time.
        own = [] if any(a.startswith("hydra.run.dir=") for a in fixed) else ["hydra.run.dir=."]
        return [*fixed, *own, *overrides]
    if style == "sacred":
        return _sacred(params, fixed, run, sweep)
    return [*fixed, *(text for name, value in params.items() for text in _flag(name, value))]


def check_template(template: str, names: Sequence[str]) -> None:
    """Raise `ConfigError` if the template and the parameters do not fit."""
    used = set(_NAMES.findall(template)) - {"run"}
    if unknown := sorted(used - set(names)):
        raise ConfigError(
            f"the template uses {{{unknown[0]}}}, which is not a parameter",
            fix=f"use these: {', '.join(names) or 'none'}",
        )
    if unused := sorted(set(names) - used):
        raise ConfigError(
            f"the template does not use {{{unused[0]}}}", why="its values would have no effect"
        )
    try:
        shlex.split(template)
    except ValueError as error:
        raise ConfigError(f"the template {template!r} is not shell text", why=str(error)) from None


def text_of(value: Any) -> str:
    """A value as an argument."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def _flag(name: str, value: Any) -> list[str]:
    """`--name value`; for true the flag alone, for false and null nothing; a list as several
    arguments. A name that begins with a dash is used as it is."""
    flag = name if name.startswith("-") else f"--{name}"
    if value is True:
        return [flag]
    if value is False or value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [flag, *(text_of(item) for item in value)]
    text = text_of(value)
    # argparse takes a text that begins with a dash for a flag, unless it is a number.
    if text.startswith("-") and isinstance(value, str) and flag.startswith("--"):
        return [f"{flag}={text}"]
    return [flag, text]


def _from_template(template: str, params: Mapping[str, Any], run: int) -> list[str]:
    values = {**params, "run": run}

    def fill(part: str) -> str:
        return _NAMES.sub(lambda match: text_of(values[match[1]]), part)

    # Split first: a value with spaces stays one argument.
    return [fill(part) for part in shlex.split(template)]


def _hydra_text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_hydra_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{k}:{_hydra_text(v)}' for k, v in value.items())}}}"
    if not isinstance(value, str):
        return text_of(value)
    if _PLAIN_HYDRA.fullmatch(value) and not _is_literal(value):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _is_literal(text: str) -> bool:
    """Whether a parser of values would take this text for something else than a string."""
    if text.lower() in ("true", "false", "null", "none", "nan", "inf"):
        return True
    try:
        return not isinstance(ast.literal_eval(text), str)
    except (ValueError, SyntaxError):
        return False


def _sacred(params: Mapping[str, Any], fixed: Sequence[str], run: int, sweep: str) -> list[str]:
    """`train.py -F DIR -i ID [FIXED] with a=1`. A name that begins with @ stands for a named
    config: @model=resnet becomes `resnet`, so that named configs can be swept."""
    # A database has the runs of other sweeps too, a directory only those of this one.
    has_database = any(a.startswith(("-m", "--mongo")) for a in fixed)
    id = f"{sweep}-{run}" if has_database else str(run)
    updates = [
        text_of(value) if name.startswith("@") else f"{name}={_sacred_text(value)}"
        for name, value in params.items()
        if not (name.startswith("@") and value in (None, ""))
    ]
    before, after = list(fixed), []
    if "with" in before:
        at = before.index("with")
        before, after = before[:at], before[at + 1 :]
    words = ["with", *after, *updates] if after or updates else []
    return [*before, "-F", SACRED_DIRECTORY, "-i", id, *words]


def _sacred_text(value: Any) -> str:
    """Sacred reads Python literals, and takes other text as a string."""
    if isinstance(value, str):
        return repr(value) if _is_literal(value) or value.strip() != value else value
    return repr(value)
