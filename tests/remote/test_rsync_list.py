"""The files that rsync would send, as the hash of the file mounts needs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.remote.rsync import list_files
from shoal.remote.runner import Filters

TREE = [
    *("data/x", "sub/data/y", "top/sub/data/z", "logs/a/b", "deep/down/x.pyc", ".git/config"),
    *("keep.log", "other.log", "a b", "[z]"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for path in TREE:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return root


def files(root: Path, *exclude: str, filter_files: tuple[str, ...] = ()) -> set[str]:
    paths = list_files(root, Filters(exclude, filter_files))
    assert paths == sorted(paths)
    return {path for path in paths if not (root / path).is_dir()}


def test_everything_is_listed_without_filters(tree: Path) -> None:
    assert files(tree) == set(TREE)
    assert "deep/down" in list_files(tree, Filters()), "directories too, without a slash"


@pytest.mark.parametrize(
    ("pattern", "excluded"),
    [
        ("*.pyc", {"deep/down/x.pyc"}),
        ("**/.git", {".git/config"}),
        ("**/.git/**", {".git/config"}),
        ("/data", {"data/x"}),
        ("x/", set()),
        ("sub/data", {"sub/data/y", "top/sub/data/z"}),
        ("logs/*", {"logs/a/b"}),
        ("[[]z]", {"[z]"}),
        ("a b", {"a b"}),
        ("[", set()),
    ],
)
def test_excludes_apply(tree: Path, pattern: str, excluded: set[str]) -> None:
    assert files(tree, pattern) == set(TREE) - excluded


def test_an_include_protects_from_a_later_exclude(tree: Path) -> None:
    assert files(tree, "+ keep.log", "*.log") == set(TREE) - {"other.log"}


def test_a_filter_file_applies_to_its_directory_and_below(tree: Path) -> None:
    (tree / "top" / ".gitignore").write_text("# a comment\n\n/sub/data\n*.log\n")
    listed = files(tree, filter_files=(".gitignore",))
    assert listed == {*TREE, "top/.gitignore"} - {"top/sub/data/z"}


def test_any_name_is_listed_as_it_is(tmp_path: Path) -> None:
    names = [
        "two\nlines",
        "back\\slash",
        "\\#012",
        "ümläut",
        "tab\t",
        os.fsdecode(b"\xff\xfe"),
        " ",
    ]
    for name in names:
        (tmp_path / name).touch()
    assert files(tmp_path) == set(names)


def test_links_are_listed_and_not_followed(tree: Path) -> None:
    (tree / "link").symlink_to("data")
    assert "link" in list_files(tree, Filters())
    assert "link/x" not in list_files(tree, Filters())


def test_a_fifo_is_not_sent(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    assert files(tree) == set(TREE)


def test_a_single_file_is_listed_unless_it_is_excluded(tree: Path) -> None:
    assert list_files(tree / "keep.log", Filters()) == ["keep.log"]
    assert list_files(tree / "keep.log", Filters(("*.log",))) == []


def test_a_missing_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        list_files(tmp_path / "none", Filters())


def test_the_users_own_settings_of_rsync_do_not_apply(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSYNC_PARTIAL_DIR", ".partial")
    monkeypatch.setenv("RSYNC_RSH", "false")
    assert files(tree) == set(TREE)


def test_a_machine_without_rsync_is_a_config_error(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigError, match="this machine has no rsync"):
        list_files(tree, Filters())
