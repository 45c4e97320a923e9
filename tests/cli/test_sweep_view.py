"""How a sweep is shown."""

from __future__ import annotations

import pytest

from shoal.cli.render.sweep import SweepView, ended_lines, progress_line, run_lines, started_lines
from shoal.core.events import Event, Stage
from shoal.jobs.sweep.sweep_events import SweepEnded, SweepProgress, SweepRunEnded, SweepStarted

FAILED = SweepRunEnded(
    3, {"lr": 0.1}, "failed", 4.0, why="exit code 1", fix="pin it", attempts=2, tail=("no data",)
)
OK = SweepRunEnded(2, {"lr": 0.1, "opt": "adam"}, "ok", 65.0, {"loss": 0.123456})
PROGRESS = SweepProgress(40, 12, 1, 8, 20, 3, 303.0, 0.4, 1.2)


def test_a_run_is_a_line_and_a_failure_has_its_last_lines() -> None:
    assert run_lines(OK) == ["run 2  lr=0.1 opt=adam  loss=0.1235  1m 5s"]
    assert run_lines(FAILED) == [
        "run 3  lr=0.1  failed: exit code 1  4s  2 attempts",
        "  | no data",
    ]


def test_progress_has_the_time_left_and_the_price() -> None:
    expected = (
        "12/40 done  1 failed  8 running  20 waiting  3 nodes  5m 3s left  $0.40 of about $1.20"
    )
    assert progress_line(PROGRESS) == expected
    assert progress_line(SweepProgress(2, 0, 0)) == "0/2 done  0 running  0 waiting  0 nodes"


def test_the_price_is_shown_before_and_after() -> None:
    lines = started_lines(SweepStarted("s", "out", 4, 1, "flags", 0.2, 3.5))
    assert lines[1] == "1 run of it done already"
    assert "costs $0.20/h now, and at most $3.50/h" in lines[2]
    limited = started_lines(SweepStarted("s", "out", 4, 0, "flags", 0.2, 3.5, 7.25))
    assert limited[-1] == "if every run takes its time limit, the sweep costs about $7.25"
    assert len(started_lines(SweepStarted("s", "out", 1, 0, "flags"))) == 1
    assert "cost $0.50 meanwhile" in ended_lines(SweepEnded("out", 4, 0, 0.5))[0]
    assert ended_lines(SweepEnded("out", 4, 1))[-1].endswith(
        "shoal sweep resume out --retry-failed"
    )


def test_a_log_has_every_run_and_each_fix_once(capsys: pytest.CaptureFixture[str]) -> None:
    passed: list[Event] = []
    view = SweepView(passed.append, is_terminal=False)
    for event in (OK, FAILED, FAILED, Stage("other"), PROGRESS, PROGRESS):
        view.event(event)
    view.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("run 2") == 1
    assert shown.err.count("run 3") == 2
    assert shown.err.count("fix: pin it") == 1
    assert shown.err.count("12/40 done") == 1
    assert passed == [Stage("other")]


def test_a_terminal_shows_the_last_runs_and_the_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    view = SweepView(lambda event: None, is_terminal=True)
    for event in (OK, PROGRESS, FAILED, PROGRESS):
        view.event(event)
    view.close()
    shown = capsys.readouterr().err
    assert "0.1235" in shown
    assert "no data" in shown
    assert "12/40 done" in shown
