"""Lock files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.core.file_lock import FileLock, lock_owner


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as first, FileLock(path) as second:
        assert first.try_acquire()
        assert not second.try_acquire()
        assert not second.acquire_within(0)
    with FileLock(path) as third:
        assert third.try_acquire()


def test_the_owner_is_known_while_the_lock_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_owner(path) is None
    with FileLock(path) as lock:
        lock.acquire()
        lock.write_owner()
        assert lock_owner(path) == os.getpid()
    assert lock_owner(path) is None


def test_a_disk_that_takes_no_id_leaves_no_wrong_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    path.write_text("12345\n")

    def fail(*_: object) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "pwrite", fail)
    with FileLock(path) as lock:
        assert lock.try_acquire()
        lock.write_owner()
        assert lock.read_owner() is None
