"""Cluster files as text, for tests that read like sentences."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from shoal.spec import LoadedSpec, Overrides, SpecError, YamlText, load

# Test data that is not ours to ship lies in a directory beside the project, where there is one.
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
    given = Overrides(**overrides)  # type: ignore[arg-type]
    return load(YamlText("cluster.yaml", textwrap.dedent(text)), given)


def mistakes(text: str, **overrides: str | int) -> list[str]:
    """Every line of the error that a file with this text gives."""
    with pytest.raises(SpecError) as caught:
        loaded(text, **overrides)
    return str(caught.value).splitlines()
