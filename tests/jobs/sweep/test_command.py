"""How parameters become arguments of a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import ConfigError
from shoal.jobs.sweep.command import arguments_of, check_template, detect_style


@pytest.mark.parametrize(
    ("source", "style"),
    [
        ("import argparse", "flags"),
        ("from sacred import Experiment", "sacred"),
        ("def f():\n  import hydra.utils", "hydra"),
        ("try:\n  from hydra import main\nexcept ImportError: pass", "hydra"),
        ("from .sacred import x\n# import hydra", "flags"),
    ],
)
def test_the_style_is_what_the_script_imports(tmp_path: Path, source: str, style: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert detect_style(script) == style


def test_a_script_with_a_syntax_error_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\ndef")
    with pytest.raises(ConfigError, match=r"train.py has a syntax error in line 2"):
        detect_style(script)


@pytest.mark.parametrize(
    ("params", "arguments"),
    [
        ({"lr": 0.001, "seed": 3}, "--lr 0.001 --seed 3"),
        ({"lr": 1e-7, "t": -1}, "--lr 1e-07 --t -1"),
        ({"amp": True, "half": False, "none": None}, "--amp"),
        ({"layers": [64, 32]}, "--layers 64 32"),
        ({"-k": "x"}, "-k x"),
        ({"pattern": "-x"}, "--pattern=-x"),
    ],
)
def test_flags(params: dict[str, Any], arguments: str) -> None:
    assert arguments_of("flags", params) == arguments.split()


def test_fixed_arguments_come_first() -> None:
    assert arguments_of("flags", {"lr": 1}, ["--epochs", "3"]) == ["--epochs", "3", "--lr", "1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        ("adam", "adam"),
        ("a b", "'a b'"),
        ("it's", "'it\\'s'"),
        ("10", "'10'"),
        ("true", "'true'"),
        (None, "null"),
        (True, "true"),
        ([1, "a b"], "[1,'a b']"),
        ("s3://b/x", "s3://b/x"),
    ],
)
def test_hydra_overrides_keep_the_type(value: object, text: str) -> None:
    arguments = arguments_of("hydra", {"model.x": value})
    assert arguments == ["hydra.run.dir=.", f"model.x={text}"]


def test_hydras_own_directory_is_respected() -> None:
    arguments = arguments_of("hydra", {"a": 1}, ["hydra.run.dir=out"])
    assert arguments == ["hydra.run.dir=out", "a=1"]


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        ([], "-F sacred_runs -i 7 with lr=0.1 name=a n='1'"),
        (["evaluate"], "evaluate -F sacred_runs -i 7 with lr=0.1 name=a n='1'"),
        (["with", "big"], "-F sacred_runs -i 7 with big lr=0.1 name=a n='1'"),
        (["-m", "h:27017:db"], "-m h:27017:db -F sacred_runs -i abc-7 with lr=0.1 name=a n='1'"),
    ],
)
def test_sacred_updates(fixed: list[str], expected: str) -> None:
    params = {"lr": 0.1, "name": "a", "n": "1"}
    assert arguments_of("sacred", params, fixed, run=7, sweep="abc") == expected.split()


def test_named_configs_of_sacred_can_be_swept() -> None:
    assert arguments_of("sacred", {"@model": "big", "x": 1}, run=1)[-3:] == ["with", "big", "x=1"]
    assert arguments_of("sacred", {}, run=1) == ["-F", "sacred_runs", "-i", "1"]


def test_a_template_keeps_values_with_spaces_together() -> None:
    template = "{lr} --seed {seed} --name 'run {run}'"
    arguments = arguments_of("template", {"lr": "a b", "seed": 2}, template=template, run=5)
    assert arguments == ["a b", "--seed", "2", "--name", "run 5"]


@pytest.mark.parametrize(
    ("template", "names"), [("{lr}", []), ("--seed 1", ["lr"]), ("'{lr}", ["lr"])]
)
def test_a_template_that_does_not_fit_is_refused(template: str, names: list[str]) -> None:
    with pytest.raises(ConfigError):
        check_template(template, names)
    check_template("{lr} {run}", ["lr"])
