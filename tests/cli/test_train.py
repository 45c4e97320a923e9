"""The arguments of `shoal train`, and how it shows a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli import adaptdl, main
from shoal.cli.render.training import TrainingView, progress_line, reason_line
from shoal.core.events import Event, Stage
from shoal.train.job.job_events import TrainNote, TrainOutput, TrainProgress, TrainStarted
from shoal.train.job.job_spec import AUTO_GPUS


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of the operation, which runs nothing."""
    calls: list[Any] = []

    async def train(ctx: object, cluster: object, options: object, **flags: bool) -> int:
        calls.append((cluster, options, flags))
        return 7

    monkeypatch.setattr("shoal.ops.train.train", train)
    monkeypatch.setattr("shoal.ops.train.check_code", lambda options: None)
    return calls


def test_arguments_after_the_dashes_go_to_the_script(trained: list[Any]) -> None:
    arguments = ["train", "-u", "ray://h:1", "-f", "code.py", "-m", "4", "--", "--lr", "1", "-f"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 7
    ((cluster, options, flags),) = trained
    assert cluster == "ray://h:1"
    assert options.script == "code.py"
    assert options.max_workers == 4
    assert options.arguments == ("--lr", "1", "-f")
    assert options.gpus == AUTO_GPUS
    assert flags == {"start": False, "stop": False}


def test_adaptdls_flags_are_accepted(trained: list[Any], tmp_path: Path) -> None:
    flags = "--max-cluster-size 3 --port-offset 5 --gpus 0 --cpus 2 --checkpoint-timeout 30"
    flags += f" --cluster-rescale-timeout 20 -d {tmp_path}"
    arguments = ["train", "-u", "ray://h:1", "-f", "c.py", *flags.split()]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 7, result.output
    ((_, options, _),) = trained
    assert (options.max_workers, options.working_dir) == (3, tmp_path)
    assert (options.gpus, options.cpus) == (0.0, 2.0)
    assert (options.checkpoint_timeout_s, options.rescale_timeout_s) == (30.0, 20.0)


def test_adaptdls_program_names_run_the_same_command(
    trained: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["adaptdl-ray", "-u", "ray://h:10001", "-f", "code.py", "-m", "2", "--", "--bs", "8"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        adaptdl.main()
    assert ended.value.code == 7
    ((cluster, options, _),) = trained
    assert (cluster, options.arguments) == ("ray://h:10001", ("--bs", "8"))


@pytest.mark.parametrize(
    "arguments",
    [[], ["-m", "2"], ["-f", "c.py", "-m", "0"], ["-f", "c.py", "--gpus", "x"], ["logs"]],
)
def test_wrong_arguments_are_refused(arguments: list[str], trained: list[Any]) -> None:
    result = CliRunner().invoke(main, ["train", *arguments])
    assert result.exit_code == 2
    assert trained == []


def test_a_missing_script_ends_with_2_before_anything_starts(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.py")
    result = CliRunner().invoke(main, ["train", "-u", "ray://h:1", "-f", missing])
    assert result.exit_code == 2
    assert "not found" in result.output


def test_a_missing_script_is_named_before_a_cluster_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    result = CliRunner().invoke(main, ["train", "-f", str(tmp_path / "no.py")])
    assert result.exit_code == 2
    assert "not found" in result.output
    assert "cluster" not in result.output


def test_a_job_that_could_not_be_started_is_not_said_to_run(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    arguments = ["train", "-u", "http://127.0.0.1:1", "-f", str(tmp_path / "code.py")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "no connection while job code-" in result.output
    assert "runs on" not in result.output


def test_a_mistyped_command_is_not_taken_for_options() -> None:
    result = CliRunner().invoke(main, ["train", "lits"])
    assert result.exit_code == 2
    assert "No such command 'lits': use one of list, logs, stop" in result.output


def test_the_help_lists_the_other_commands() -> None:
    result = CliRunner().invoke(main, ["train", "--help"])
    assert result.exit_code == 0
    for word in ("list", "logs", "stop", "explain", "--checkpoint-dir"):
        assert word in result.output


PROGRESS = TrainProgress(1, 40, 3, 96, 812.4, epochs=4, pass_seconds_left=5, seconds_left=125)


def test_a_progress_line_names_everything() -> None:
    line = progress_line(PROGRESS)
    assert line == "epoch 2/4  step 40  3 workers  batch 96  812 samples/s  2m 5s left"
    partial = progress_line(TrainProgress(0, 1, 1, 8, 2.5, pass_seconds_left=5))
    assert partial == "epoch 1  step 1  1 worker  batch 8  2.5 samples/s  5s left in this pass"


def test_output_of_the_script_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    passed: list[Event] = []
    view = TrainingView(passed.append, is_terminal=False)
    view.event(TrainStarted("j"))
    view.event(TrainOutput("loss 0.1"))
    view.event(PROGRESS)
    view.event(PROGRESS)  # not again in a log
    view.event(TrainNote("w2 was killed", "warning"))
    view.event(Stage("other"))
    view.close()
    shown = capsys.readouterr()
    assert shown.out == "loss 0.1\n"
    lines = shown.err.splitlines()
    assert lines == ["job j", progress_line(PROGRESS), "warning: w2 was killed"]
    assert passed == [Stage("other")]


def test_on_a_terminal_the_progress_line_is_redrawn(capsys: pytest.CaptureFixture[str]) -> None:
    view = TrainingView(lambda event: None, is_terminal=True)
    view.event(PROGRESS)
    view.event(TrainOutput("loss 0.1"))
    view.close()
    shown = capsys.readouterr()
    assert shown.out == "loss 0.1\n"
    assert shown.err.count(progress_line(PROGRESS)) == 2
    assert shown.err.endswith("\r\033[K")


def test_a_progress_line_never_wraps(capsys: pytest.CaptureFixture[str]) -> None:
    view = TrainingView(lambda event: None, is_terminal=True)
    view.event(replace(PROGRESS, step=10**9, batch_size=10**6, throughput=1e8, seconds_left=1e6))
    (line,) = capsys.readouterr().err.replace("\r\033[K", "").splitlines()
    assert len(line) == 79
    assert line.startswith("epoch 2/4  step 1000000000  3 workers  batch 1000000")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            {"members": ["w1", "w2"], "step": 9, "generation": 2, "reason": "w2 joined"},
            "generation 2 at step 9: w1, w2 (w2 joined)",
        ),
        ({"why": "refused", "generation": 3}, "generation 3 cancelled: refused"),
        ({"why": "not needed", "worker": "w2"}, "w2 ended: not needed"),
        ({"path": "/c", "step": 9}, "checkpoint at step 9: /c"),
        ({"status": 0, "text": ""}, "ended with status 0"),
        ({"text": "node is lost"}, "node is lost"),
    ],
)
def test_reasons_are_sentences(entry: dict[str, Any], text: str) -> None:
    assert reason_line({"time": 0.0, **entry}).endswith(f"  {text}")


def test_an_entry_without_a_reason_is_not_shown() -> None:
    assert reason_line({"time": 0.0, "generation": 2, "seconds": 0.1}) == ""
