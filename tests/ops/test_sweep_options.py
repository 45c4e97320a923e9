"""What a sweep runs with, by its options and its cluster's file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.ops.sweep import SweepOptions, _with_defaults, make_spec
from tests.specs import cluster


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "project" / "src" / "train.py"
    path.parent.mkdir(parents=True)
    path.touch()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    return path


def test_the_code_of_the_clusters_file_is_used_if_the_script_is_in_it(script: Path) -> None:
    spec = cluster()
    project = script.parents[1]
    settings = replace(spec.shoal, code=str(project), requirements=str(project / "r.txt"))
    options = _with_defaults(replace(spec, shoal=settings), SweepOptions(script))
    assert options.requirements == project / "r.txt"
    code, made = make_spec(options)
    assert (code, made.script) == (project, "src/train.py")


def test_the_code_of_another_project_is_not_used(script: Path, tmp_path: Path) -> None:
    spec = cluster()
    settings = replace(spec.shoal, code=str(tmp_path / "other"), requirements="/r.txt")
    options = _with_defaults(replace(spec, shoal=settings), SweepOptions(script))
    assert options.requirements is None
    assert make_spec(options)[0] == script.parent


def test_a_script_outside_of_the_given_code_is_refused(script: Path, tmp_path: Path) -> None:
    options = SweepOptions(script, code=tmp_path / "other")
    with pytest.raises(ConfigError, match="is not in the code's directory"):
        make_spec(_with_defaults(cluster(), options))
