"""Directories that a script makes durable."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.train import env, latest_checkpoint, save


@pytest.fixture(autouse=True, params=["path", "url"])
def checkpoint_dir(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    directory = tmp_path / "checkpoints"
    location = f"file://{directory}" if request.param == "url" else str(directory)
    if request.param == "url":
        pytest.importorskip("fsspec")
    monkeypatch.setenv("SHOAL_TRAIN_CHECKPOINT_DIR", location)
    return directory


def _written(directory: Path, text: str) -> Path:
    (directory / "sub").mkdir(parents=True, exist_ok=True)
    (directory / "model.pt").write_text(text)
    (directory / "sub" / "state.json").write_text("{}")
    return directory


def test_the_newest_saved_directory_is_found_with_all_its_files(tmp_path: Path) -> None:
    assert latest_checkpoint() is None
    for text in ("one", "two"):
        save(_written(tmp_path / "out", text))
    found = latest_checkpoint()
    assert found is not None
    assert (Path(found) / "model.pt").read_text() == "two"
    assert (Path(found) / "sub" / "state.json").read_text() == "{}"


def test_a_damaged_one_is_skipped(
    tmp_path: Path, checkpoint_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("one", "two"):
        save(_written(tmp_path / "out", text))
    (checkpoint_dir / "saved" / "save-2" / "model.pt").write_text("tw")
    found = latest_checkpoint()
    assert found is not None
    assert (Path(found) / "model.pt").read_text() == "one"
    assert "save-2 is damaged" in capsys.readouterr().out


def test_old_ones_are_deleted(tmp_path: Path, checkpoint_dir: Path) -> None:
    for text in ("one", "two", "three"):
        save(_written(tmp_path / "out", text))
    assert sorted(p.name for p in (checkpoint_dir / "saved").iterdir()) == ["save-2", "save-3"]


def test_only_rank_0_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "_place", None)  # a script of torchrun has no session
    monkeypatch.setenv("RANK", "1")
    assert save(_written(tmp_path / "out", "one")) is None
    assert latest_checkpoint() is None


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no files"):
        save(tmp_path)
