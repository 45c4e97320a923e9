"""What a snapshot of a directory contains."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.jobs import code
from shoal.jobs.code import Snapshot, snapshot
from shoal.jobs.package import Package
from tests.jobs.repository import git, repository


def paths(taken: Snapshot) -> list[str]:
    return [file.path for file in taken.files]


def unpacked(taken: Snapshot) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(Package(taken).archive())) as package:
        return {name: package.read(name) for name in package.namelist()}


def test_a_clean_tree_has_its_commit_and_branch(tmp_path: Path) -> None:
    taken = snapshot(repository(tmp_path, train__py="1"))
    assert paths(taken) == ["train.py"]
    assert taken.git.commit == git(tmp_path, "rev-parse", "HEAD")
    assert taken.git.branch == "main"
    assert not taken.git.dirty
    assert not taken.git.diff


def test_changes_and_untracked_modules_are_sent_and_ignored_files_are_not(tmp_path: Path) -> None:
    root = repository(tmp_path, train__py="1", gone__py="1", __gitignore="data\n*.log\n")
    (root / "train.py").write_text("2")
    (root / "new.py").write_text("3")
    (root / "gone.py").unlink()
    (root / "x.log").touch()
    (root / "data").mkdir()
    (root / "data" / "big").touch()
    taken = snapshot(root)
    assert paths(taken) == [".gitignore", "new.py", "train.py"]
    assert unpacked(taken)["train.py"] == b"2"
    assert taken.git.dirty
    assert "+2" in taken.git.diff


def test_a_subdirectory_of_a_repository_is_a_snapshot_of_its_own(tmp_path: Path) -> None:
    root = repository(tmp_path, outside__py="1")
    (root / "inner").mkdir()
    (root / "inner" / "a.py").touch()
    taken = snapshot(root / "inner")
    assert paths(taken) == ["a.py"]
    assert taken.git.commit


def test_a_repository_without_commits_is_sent(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a.py").touch()
    taken = snapshot(tmp_path)
    assert paths(taken) == ["a.py"]
    assert (taken.git.commit, taken.git.branch, taken.git.dirty) == ("", "main", True)


def test_a_detached_head_has_a_commit_and_no_branch(tmp_path: Path) -> None:
    root = repository(tmp_path, a__py="1")
    git(root, "checkout", "-q", "--detach")
    state = snapshot(root).git
    assert (bool(state.commit), state.branch) == (True, "")


def test_without_git_caches_and_virtual_environments_stay(tmp_path: Path) -> None:
    for name in ("a.py", "__pycache__/a.pyc", "env/pyvenv.cfg", "env/bin/x", "pkg/b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    taken = snapshot(tmp_path)
    assert paths(taken) == ["a.py", "pkg/b.py"]
    assert taken.git == code.GitState()


def test_links_are_sent_as_what_they_point_to(tmp_path: Path) -> None:
    root = repository(tmp_path, a__py="1")
    (root / "pkg").mkdir()
    (root / "pkg" / "b.py").write_text("2")
    (root / "file.py").symlink_to("a.py")
    (root / "linked").symlink_to("pkg")
    (root / "broken").symlink_to("missing")
    (root / "loop").symlink_to(".")
    taken = snapshot(root)
    assert paths(taken) == ["a.py", "file.py", "linked/b.py", "pkg/b.py"]
    assert unpacked(taken)["file.py"] == b"1"
    assert taken.links == {"linked": "pkg", "broken": "missing", "loop": "."}
    assert [file.link for file in taken.files if file.link] == ["a.py"]


def test_a_submodule_is_sent_with_its_files(tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner", lib__py="1", __gitignore="out\n")
    root = repository(tmp_path / "outer", a__py="1")
    git(root, "submodule", "add", "-q", str(inner), "sub")
    (root / "sub" / "out").touch()
    (root / "sub" / "new.py").touch()
    taken = snapshot(root)
    assert {"sub/lib.py", "sub/new.py"} <= set(paths(taken))
    assert "sub/out" not in paths(taken)


def test_odd_names_are_sent_or_named(tmp_path: Path) -> None:
    root = repository(tmp_path, a__py="1")
    for name in ("a b.txt", "ü.txt", "line\nbreak", "-r"):
        (root / name).touch()
    (root / "back\\slash").touch()
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).touch()
    taken = snapshot(root)
    assert {"a b.txt", "ü.txt", "line\nbreak", "-r"} <= set(paths(taken))
    assert len(taken.skipped) == 2
    assert "ü.txt" in unpacked(taken)


def test_executable_files_stay_executable(tmp_path: Path) -> None:
    root = repository(tmp_path, run__sh="1", a__py="1")
    (root / "run.sh").chmod(0o755)
    with zipfile.ZipFile(io.BytesIO(Package(snapshot(root)).archive())) as package:
        modes = {i.filename: i.external_attr >> 16 & 0o111 for i in package.infolist()}
    assert bool(modes["run.sh"])
    assert not modes["a.py"]


def test_more_than_the_limit_is_refused_with_the_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "MAX_BYTES", 1 << 20)
    root = repository(tmp_path, small__py="1")
    with (root / "weights.bin").open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(ConfigError, match="larger than 1 MiB") as refused:
        snapshot(root)
    assert "weights.bin" in refused.value.output[0]
    (root / ".gitignore").write_text("*.bin\n")
    assert "weights.bin" not in paths(snapshot(root))


def test_the_limit_fits_the_dashboard() -> None:
    assert code.MAX_BYTES == 90 << 20


def test_the_name_of_a_package_depends_on_the_content_only(tmp_path: Path) -> None:
    root = repository(tmp_path, a__py="1")
    first = Package(snapshot(root))
    (root / "a.py").touch()
    again = Package(snapshot(root))
    assert (first.uri, first.archive()) == (again.uri, again.archive())
    (root / "a.py").write_text("2")
    assert Package(snapshot(root)).uri != first.uri


def test_modules_that_hide_the_standard_library_are_named(tmp_path: Path) -> None:
    root = repository(tmp_path, code__py="1", train__py="1")
    for name in ("json/__init__.py", "inner/io.py", "random/data.txt"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    taken = snapshot(root)
    assert taken.shadowed == ("code", "json")
    assert "py_executable" in Package(taken).runtime_env()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no code in"):
        snapshot(tmp_path / "missing")
