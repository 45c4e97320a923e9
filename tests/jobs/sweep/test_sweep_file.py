"""Sweeps as YAML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.jobs.sweep.space import Distribution
from shoal.jobs.sweep.sweep_file import read_sweep_file


def test_a_file_has_the_options_of_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "script: train.py\ncpus: 2\ntime_limit: 1h\nsamples: 3\narguments: [--epochs, 3]\n"
        "grid: {lr: [1e-3, 0.5], seed: 1..3, opt: [adam, '7'], one: 5}\n"
        "random: {d: 'uniform(0, 1)'}\n"
    )
    options = read_sweep_file(path)
    assert options["script"] == tmp_path / "train.py"
    assert options["grid"] == {
        "lr": [0.001, 0.5], "seed": [1, 2, 3], "opt": ["adam", "7"], "one": [5],
    }  # fmt: skip
    assert options["random"] == {"d": Distribution("uniform", (0, 1))}
    assert options["arguments"] == ("--epochs", "3")
    assert (options["cpus"], options["time_limit"]) == (2, "1h")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grids: {}", "unknown setting grids"),
        ("- a", "is not a sweep"),
        ("a: [", "is not YAML"),
        ("cpus: many", "cpus must be a number"),
        ("grid: [1]", "grid must have a parameter on each line"),
        ("random: {x: 3}", "must be a distribution"),
        ("arguments: --x", "arguments must be a list"),
        ("script: [1]", "script must be text"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_sweep_file(path)
