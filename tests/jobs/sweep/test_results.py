"""The local directory of a sweep, and the journal that it and the head share."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shoal.core.errors import ConfigError, NotFoundError, ShoalError
from shoal.jobs.sweep.journal import Journal, Result, read_results
from shoal.jobs.sweep.plot import as_svg, as_text, plot_of
from shoal.jobs.sweep.results import SweepDirectory, SweepState
from shoal.jobs.sweep.sweep_spec import SweepSpec, run_name
from shoal.jobs.sweep.table import sorted_results, table

SPEC = SweepSpec("abc", "train.py").with_params([{"x": 1}, {"x": 2}])


def result(run: int, status: str = "ok", **more: Any) -> Result:
    return {
        "run": run, "status": status, "params": {"x": run}, "metrics": {"loss": 1 / run},
        "seconds": 1.0, "why": "", "tail": [], "notes": [], "attempts": 1, **more,
    }  # fmt: skip


def head_archive(head: Path, runs: list[int]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for run in runs:
            archive.add(head / "runs" / run_name(run), run_name(run))
    buffer.seek(0)
    return buffer


def zipped(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_results_arrive_with_output_files_and_sacreds_directories(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "head")
    for run in (1, 2):
        files = {
            "model.pt": "weights",
            f"sacred_runs/{run}/run.json": "{}",
            "sacred_runs/_sources/train_1.py": "code",
        }
        journal.write_run(result(run), b"printed", iter([zipped(files)]))
    with SweepDirectory(tmp_path / "local") as local:
        local.save(SPEC)
        local.store([result(1), result(2)], head_archive(tmp_path / "head", [1, 2]))
    path = tmp_path / "local"
    assert (path / "runs/0001/output.log").read_text() == "printed"
    assert (path / "runs/0002/files/model.pt").read_text() == "weights"
    assert json.loads((path / "runs/0002/result.json").read_text())["run"] == 2
    assert sorted(p.name for p in (path / "sacred").iterdir()) == ["1", "2", "_sources"]
    assert (path / "sacred/1/info.json").read_text() == "{}", "incense reads it"
    assert not (path / "runs/0001/files/sacred_runs").exists()
    assert sorted(local.results()) == [1, 2]


def test_a_run_that_did_not_arrive_is_not_recorded(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "head")
    journal.write_run(result(1), b"", iter([]))
    with SweepDirectory(tmp_path / "local") as local, pytest.raises(ShoalError, match="run 2"):
        local.store([result(1), result(2)], head_archive(tmp_path / "head", [1]))
    assert sorted(local.results()) == [1]


def test_a_cut_off_line_is_skipped_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    Journal(tmp_path).append(result(1))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"run": 2, "sta')
    Journal(tmp_path).append(result(3))
    assert sorted(read_results(tmp_path)) == [1, 3]


def test_a_result_replaces_the_one_before(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write_run(result(1, "failed"), b"first", iter([b"zip"]))
    (tmp_path / "runs" / ".0001").mkdir()  # as a killed driver leaves it
    journal.write_run(result(1), b"second", iter([]))
    assert read_results(tmp_path)[1]["status"] == "ok"
    assert (tmp_path / "runs/0001/output.log").read_bytes() == b"second"
    assert not (tmp_path / "runs/0001/files.zip").exists()


def test_the_same_directory_continues_its_sweep(tmp_path: Path) -> None:
    with SweepDirectory(tmp_path / "d") as local:
        local.save(SPEC)
        other = SweepSpec("xyz", "train.py", cpus=4).with_params([{"x": 2}, {"x": 3}])
        continued = local.continued(other)
    assert (continued.id, continued.cpus) == ("abc", 4)
    assert [(run.number, run.params["x"]) for run in continued.runs] == [(1, 1), (2, 2), (3, 3)]


def test_a_directory_of_another_sweep_is_refused(tmp_path: Path) -> None:
    with SweepDirectory(tmp_path / "d") as local:
        local.save(SPEC)
        with pytest.raises(ConfigError, match="another sweep"):
            local.continued(SweepSpec("xyz", "other.py"))


def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with SweepDirectory(tmp_path) as local, pytest.raises(ConfigError, match="not empty"):
        local.save(SPEC)
    assert not (tmp_path / ".gitignore").exists()


def test_results_are_not_part_of_the_next_snapshot(tmp_path: Path) -> None:
    with SweepDirectory(tmp_path / "d") as local:
        local.save(SPEC)
    assert (tmp_path / "d" / ".gitignore").read_text() == "*\n"


def test_two_commands_cannot_use_a_directory_at_once(tmp_path: Path) -> None:
    with (
        SweepDirectory(tmp_path),
        pytest.raises(ConfigError, match="another command"),
        SweepDirectory(tmp_path),
    ):
        pass


def test_the_state_survives(tmp_path: Path) -> None:
    with SweepDirectory(tmp_path) as local:
        assert local.state() == SweepState()
        local.save_state(SweepState("demo", "job", 2))
        assert local.state() == SweepState("demo", "job", 2)
        (tmp_path / "state.json").write_text("{")
        assert local.state() == SweepState()


def test_a_directory_without_a_sweep_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no sweep in"):
        SweepDirectory(tmp_path).load()


RESULTS = [
    result(1, metrics={"loss": 0.5}, params={"lr": 0.1, "opt": "a"}),
    result(2, metrics={}, params={"lr": 0.01, "opt": "b"}, status="failed"),
    result(3, metrics={"loss": 0.25}, params={"lr": 0.00001, "opt": "a"}),
]


def test_the_table_is_sorted_and_runs_without_a_value_come_last() -> None:
    assert [r["run"] for r in sorted_results(RESULTS, descending=False)] == [3, 1, 2]
    assert [r["run"] for r in sorted_results(RESULTS, "loss", descending=True)] == [1, 3, 2]
    assert [r["run"] for r in sorted_results(RESULTS, "opt", descending=False)] == [1, 3, 2]
    with pytest.raises(ConfigError, match="no run has accuracy"):
        sorted_results(RESULTS, "accuracy", descending=False)


def test_the_table_has_parameters_and_metrics() -> None:
    header, rows = table(RESULTS)
    assert header == ["RUN", "lr", "opt", "loss", "STATUS", "TIME"]
    assert rows[1] == ["2", "0.01", "b", "", "failed", "1.0s"]


def test_a_plot_shows_the_metric_over_the_parameter() -> None:
    plot = plot_of(RESULTS)
    assert plot is not None
    assert (plot.x.name, plot.x.is_log, plot.y.name) == ("lr", True, "loss")
    lines = as_text(plot)
    assert lines[0] == "loss"
    assert lines[1].startswith(" 0.5 │") and lines[1].endswith("·")
    assert lines[14] == "0.25 │·"
    assert "lr (log)" in lines[-1]
    assert as_svg(plot).count("<circle") == 2


def test_there_is_no_plot_of_nothing() -> None:
    assert plot_of([]) is None
    assert plot_of([RESULTS[1]]) is None
    with pytest.raises(ConfigError):
        plot_of(RESULTS, parameter="opt")
