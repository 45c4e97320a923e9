"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.core.atomic_write import write_atomically


def test_the_content_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    for content in ("first", b"second", "größer"):
        write_atomically(file, content, fsync=True)
        assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        write_atomically(tmp_path / "shared", "", mode=0o644)
        write_atomically(tmp_path / "default", "")
    finally:
        os.umask(umask)
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "default").stat().st_mode & 0o777 == 0o600


def test_a_failure_keeps_the_old_content_and_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.json"
    file.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_atomically(file, "new", fsync=True)
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
