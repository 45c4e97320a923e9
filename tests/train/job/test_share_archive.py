from __future__ import annotations

from pathlib import Path

import pytest

from shoal.train.job import share_archive


def test_a_new_node_gets_what_rank_0_has_downloaded_and_keeps_its_own(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "data").mkdir(parents=True)
    (source / "data" / "train.bin").write_text("samples")
    (source / "both").write_text("theirs")
    target.mkdir()
    (target / "both").write_text("mine")
    share_archive.extract(share_archive.pack(source), target)
    assert (target / "data" / "train.bin").read_text() == "samples"
    assert (target / "both").read_text() == "mine"


def test_nothing_to_share_is_nothing(tmp_path: Path) -> None:
    assert share_archive.pack(tmp_path) == b""
    share_archive.extract(b"", tmp_path / "missing")


def test_too_much_to_share_is_left_to_a_shared_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").write_text("samples")
    monkeypatch.setattr(share_archive, "MAX_BYTES", 3)
    assert share_archive.pack(tmp_path) == b""
