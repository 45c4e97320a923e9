"""Checks before a training job starts, and what its program reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.events import Event
from shoal.ops.train import ScriptError, TrainOptions, _check_syntax, check_code
from shoal.ops.train_follower import Follower, JobError
from shoal.ops.train_hosts import is_address
from shoal.remote.runner import Completed
from shoal.train.job.job_events import TrainNote, TrainOutput, TrainProgress, TrainStarted

# --- the script ---


def test_a_script_is_shipped_with_its_directory(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    code = check_code(TrainOptions(str(tmp_path / "code.py")))
    assert (code.directory, code.script) == (tmp_path, "code.py")


def test_with_a_working_directory_the_script_is_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "code.py").touch()
    code = check_code(TrainOptions("scripts/code.py", working_dir=tmp_path))
    assert (code.directory, code.script) == (tmp_path, "scripts/code.py")


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"code\.py not found") as missing:
        check_code(TrainOptions(str(tmp_path / "code.py")))
    assert missing.value.why == "no such file"
    assert missing.value.exit_code == 2


def test_a_directory_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_code(TrainOptions(str(tmp_path)))
    assert refused.value.why == "it is a directory"


def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        check_code(TrainOptions("code.py", working_dir=tmp_path / "missing"))


def test_a_script_outside_the_working_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    (tmp_path / "work").mkdir()
    with pytest.raises(ConfigError, match="not in --working-dir"):
        check_code(TrainOptions("../code.py", working_dir=tmp_path / "work"))


def test_a_syntax_error_is_shown_with_its_line_and_pythons_status(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("x = 1\nfor\n")
    with pytest.raises(ScriptError, match="line 2") as wrong:
        _check_syntax(check_code(TrainOptions(str(tmp_path / "code.py"))))
    assert wrong.value.exit_code == 1
    assert wrong.value.output == ("for",)


@pytest.mark.parametrize("address", ["ray://h:10001", "http://h:8265", "https://h"])
def test_an_address_is_not_a_cluster_name(address: str) -> None:
    assert is_address(address)
    assert not is_address("my-cluster")
    assert not is_address(None)


# --- what the program on the head prints ---


class Head:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.follower = Follower(self.events.append)

    def print(self, **entry: object) -> None:
        self.follower.line(json.dumps(entry), "stdout")


def test_entries_of_the_journal_become_events() -> None:
    head = Head()
    head.print(kind="job_started", job="j")
    head.print(kind="output", lines=["a", "b"])
    head.print(kind="note", text="w2 joined", level="warning")
    head.print(kind="announce", text="", generation=2, number=41)
    head.follower.line("a warning of Ray", "stderr")
    head.follower.line("not json", "stdout")
    assert head.events == [
        TrainStarted("j"), TrainOutput("a"), TrainOutput("b"), TrainNote("w2 joined", "warning"),
    ]  # fmt: skip
    assert head.follower.next == 42


def test_progress_tells_the_time_left() -> None:
    head = Head()
    head.print(
        kind="progress", epoch=1, step=5, samples=50, pass_size=100, batch_size=8, throughput=10.0,
        workers=2, epochs=4,
    )  # fmt: skip
    (event,) = head.events
    assert isinstance(event, TrainProgress)
    assert event.pass_seconds_left == 5.0
    assert event.seconds_left == 25.0


def test_the_status_is_the_scripts() -> None:
    head = Head()
    head.print(kind="end", text="", status=0, why="", output=[])
    assert head.follower.status(Completed(0)) == 0


def test_a_failed_script_is_an_error_with_its_status_and_last_lines() -> None:
    head = Head()
    head.print(kind="end", text="the script failed", status=3, why="w1", output=["ValueError"])
    with pytest.raises(JobError) as failed:
        head.follower.status(Completed(3))
    assert failed.value.exit_code == 3
    assert failed.value.output == ("ValueError",)


def test_an_error_of_the_program_is_shown_with_its_fix() -> None:
    head = Head()
    head.print(kind="error", what="no GPUs", why="none", fix="--gpus 0", exit_code=2)
    with pytest.raises(JobError) as failed:
        head.follower.status(Completed(2))
    assert (failed.value.exit_code, failed.value.fix) == (2, "--gpus 0")


def test_a_program_that_dies_without_a_word_shows_what_it_printed() -> None:
    with pytest.raises(ShoalError, match="could not be started") as failed:
        Head().follower.status(Completed(1, ("ModuleNotFoundError",)))
    assert failed.value.output == ("ModuleNotFoundError",)
