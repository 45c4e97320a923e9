"""Durable checkpoints: whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from shoal.train import checkpoint


class _Number(checkpoint.State):
    def __init__(self, name: str, value: int = 0) -> None:
        super().__init__(name)
        self.value = value

    def save(self, fileobj: IO[bytes]) -> None:
        fileobj.write(str(self.value).encode())

    def load(self, fileobj: IO[bytes]) -> None:
        self.value = int(fileobj.read())


@pytest.fixture(params=["directory", "url"])
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    if request.param == "url":
        pytest.importorskip("fsspec")
        path = f"file://{tmp_path}/checkpoints"
    else:
        path = str(tmp_path / "checkpoints")
    monkeypatch.setenv("ADAPTDL_CHECKPOINT_PATH", path)
    checkpoint.forget_opened()
    return path


@pytest.fixture(autouse=True)
def no_states() -> Iterator[None]:
    yield
    for state in checkpoint.states():
        checkpoint.unregister(state.name)
    checkpoint.forget_opened()


def _loaded() -> int | None:
    checkpoint.forget_opened()
    state = _Number("loaded/number")
    try:
        return state.value if checkpoint.load_state(state) else None
    finally:
        checkpoint.unregister(state.name)


def test_a_state_comes_back_from_the_newest_checkpoint(path: str) -> None:
    assert _loaded() is None
    for value in (1, 2, 3):
        checkpoint.write_checkpoint(path, {"loaded/number": str(value).encode()})
    assert _loaded() == 3


def test_a_damaged_checkpoint_is_skipped_with_a_line(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (1, 2):
        name = checkpoint.write_checkpoint(path, {"loaded/number": str(value).encode()})
    next((tmp_path / "checkpoints" / name).glob("loaded*")).write_bytes(b"7")
    assert _loaded() == 1
    assert f"checkpoint {name} is damaged" in capsys.readouterr().out


def test_a_resumed_job_that_finds_no_checkpoint_says_so(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _loaded() is None
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("SHOAL_TRAIN_RESUMES", "1")
    assert _loaded() is None
    assert f"no checkpoint in {path} on this node" in capsys.readouterr().out
    checkpoint.write_checkpoint(path, {"loaded/number": b"1"})
    assert _loaded() == 1
    assert capsys.readouterr().out == ""


def test_an_unfinished_checkpoint_does_not_count(path: str, tmp_path: Path) -> None:
    checkpoint.write_checkpoint(path, {"loaded/number": b"1"})
    unfinished = tmp_path / "checkpoints" / "checkpoint-9"
    unfinished.mkdir()
    (unfinished / "loaded%2Fnumber").write_bytes(b"9")
    assert _loaded() == 1


def test_only_the_last_checkpoints_are_kept(path: str, tmp_path: Path) -> None:
    for value in range(4):
        checkpoint.write_checkpoint(path, {"loaded/number": str(value).encode()})
    kept = sorted(entry.name for entry in (tmp_path / "checkpoints").iterdir())
    assert kept == ["checkpoint-2", "checkpoint-3"]


def test_two_states_of_one_name_are_refused() -> None:
    _Number("twice")
    with pytest.raises(ValueError, match="twice"):
        _Number("twice")


def test_all_states_are_saved_by_their_names(path: str, tmp_path: Path) -> None:
    _Number("one", 1)
    _Number("two", 2)
    checkpoint.save_all_states()
    assert (tmp_path / "checkpoints" / "checkpoint-0" / "two").read_bytes() == b"2"


def test_a_failed_write_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    written: list[str] = []
    writer = checkpoint.Writer(lambda path, size, seconds: written.append(path))
    writer.start(str(tmp_path / "file" / "below"), lambda: {"state": b""})
    writer.wait()
    assert not written
    assert "NotADirectoryError" in writer.error
