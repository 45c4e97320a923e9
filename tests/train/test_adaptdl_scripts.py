"""Scripts as AdaptDL's users have them: they grow from one worker to three and shrink to two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.train.adaptdl_package import adaptdl_package
from tests.train.local_job import LocalJob

pytestmark = pytest.mark.workers

_SCRIPTS = Path(__file__).parent / "adaptdl_scripts"
_TAGS = {
    "AdaptDL/Data/Total_Batch_Size",
    "AdaptDL/Data/Local_Batch_Size",
    "AdaptDL/Data/Accumulation_Steps",
    "AdaptDL/Model/Gradient_Norm_Sqr",
    "AdaptDL/Model/Gradient_Variance",
    "AdaptDL/Model/Gain",
    "AdaptDL/Model/Learning_Rate_Factor",
    "AdaptDL/Model/Progress",
}


def _environment(directory: Path) -> dict[str, str]:
    package = adaptdl_package()
    assert package is not None
    paths = [str(package.parent), str(_SCRIPTS / "stand_ins")]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "ADAPTDL_TENSORBOARD_LOGDIR": str(directory / "tensorboard"),
    }


@contextmanager
def _rescaled(script: str, directory: Path, *arguments: str) -> Iterator[LocalJob]:
    """The job with two workers, after it had one and three."""
    work = directory / "work"
    work.mkdir()
    environment = _environment(directory)
    args = ("--epochs", "100000", *arguments)
    with LocalJob(_SCRIPTS / script, work, args=args, environment=environment) as job:
        for workers in (1, 3, 2):
            job.resize(workers)
            job.wait_for_workers(workers)
            step = job.step()
            job.wait_for_step(step + 20)
        yield job
        job.stop()
        assert job.wait_for_end().status == 143, job.describe()


def _lines(directory: Path, kind: str) -> dict[int, set[str]]:
    """What the workers have printed for each epoch. All print the same."""
    found: dict[int, set[str]] = {}
    for log in (directory / "work").glob("w*.log"):
        for line in log.read_text().splitlines():
            if line.startswith(kind):
                _, epoch, rest = line.split(maxsplit=2)
                found.setdefault(int(epoch), set()).add(rest)
    return found


def _assert_counted(directory: Path, kind: str, is_right: Callable[[int], bool]) -> None:
    lines = _lines(directory, kind)
    assert len(lines) > 2
    assert sorted(lines) == list(range(len(lines)))
    for epoch, texts in lines.items():
        assert len(texts) == 1, f"workers disagree in epoch {epoch}: {texts}"
        assert is_right(int(texts.pop().split()[0])), lines


def _await_epochs(job: LocalJob, directory: Path, kind: str = "Train:") -> None:
    """Until two more epochs are complete."""
    last = max(_lines(directory, kind), default=-1)
    job.wait_until(lambda: max(_lines(directory, kind), default=-1) >= last + 2)


@pytest.mark.long
def test_linear_regression_computes_the_same_as_without_changes(tmp_path: Path) -> None:
    with _rescaled("linear_regression.py", tmp_path) as job:
        _await_epochs(job, tmp_path)
    _assert_counted(tmp_path, "Train:", lambda total: total == 990)
    lines = _lines(tmp_path, "Train:")
    command = [sys.executable, str(_SCRIPTS / "linear_regression.py"), "--epochs", str(len(lines))]
    environment = {**os.environ, **_environment(tmp_path)}
    alone = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    *epochs, _weights = alone.stdout.splitlines()
    for epoch, expected in enumerate(epochs):
        (rest,) = lines[epoch]
        assert float(rest.split()[1]) == pytest.approx(float(expected.split()[3]), rel=1e-5)


def test_cifar_with_barriers_and_loader_processes(tmp_path: Path) -> None:
    with _rescaled("cifar.py", tmp_path, "--bs", "30") as job:
        _await_epochs(job, tmp_path, "Valid:")
    _assert_counted(tmp_path, "Train:", lambda total: total == 330)
    _assert_counted(tmp_path, "Valid:", lambda total: total == 330)


@pytest.mark.long
def test_mnist_with_statistics_and_tensorboard(tmp_path: Path) -> None:
    with _rescaled("mnist_step_5.py", tmp_path) as job:
        _await_epochs(job, tmp_path, "Valid:")
    # With a batch size that changes, an epoch is a pass or more, and may end within one.
    _assert_counted(tmp_path, "Train:", lambda total: total > 0)
    _assert_counted(tmp_path, "Valid:", lambda total: total == 330)
    written = (tmp_path / "tensorboard" / "test" / "scalars.jsonl").read_text().splitlines()
    assert {json.loads(line)[0] for line in written} >= _TAGS


@pytest.mark.long
def test_mnist_without_statistics(tmp_path: Path) -> None:
    with _rescaled("mnist_step_4.py", tmp_path) as job:
        job.wait_for_step(job.step() + 50)
    outputs = "".join(log.read_text() for log in (tmp_path / "work").glob("w*.log"))
    assert "Test set: Average loss" in outputs
    assert "Error" not in outputs


@pytest.mark.long
def test_collaborative_filtering(tmp_path: Path) -> None:
    with _rescaled("ncf.py", tmp_path, "--batch_size", "30") as job:
        _await_epochs(job, tmp_path)
    _assert_counted(tmp_path, "Train:", lambda total: total == 480)
    assert (tmp_path / "work" / "ncf.pt").exists()
