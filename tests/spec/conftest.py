"""Helpers for tests of cluster files as text."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from shoal.spec import LoadedSpec, Overrides, SpecError, YamlText, load

# Test data that cannot be shipped is in a directory next to the project, if it exists.
SHARED = next(
    (
        above / "shared"
        for above in Path(__file__).resolve().parents[3:]
        if (above / "shared").is_dir()
    ),
    Path("no shared directory"),
)


def loaded(text: str, **overrides: str | int) -> LoadedSpec:
    """The spec of a file with this text."""
    source = YamlText("cluster.yaml", textwrap.dedent(text))
    return load(source, Overrides(**overrides))  # type: ignore[arg-type]


def problems(text: str, **overrides: str | int) -> list[str]:
    """The lines of the error for a file with this text."""
    with pytest.raises(SpecError) as caught:
        loaded(text, **overrides)
    return str(caught.value).splitlines()


def error_line(source: str | Path) -> str:
    """The only line of the error for this file or URL."""
    with pytest.raises(SpecError) as caught:
        load(source)
    (line,) = str(caught.value).splitlines()
    return line
