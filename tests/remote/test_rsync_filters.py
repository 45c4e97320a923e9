"""Our reading of rsync's patterns, held against rsync itself."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.remote.rsync_filters import compile_rule, rules, sent

NAMES = ["a", "b", "foo", "bar.py", ".git", "x y", "[z]", "A", "1", "!b", "#c", "build"]
# Patterns are made of these. A slash inside of brackets is left out: what rsync makes of it
# depends on how it counts slashes, and no one writes it.
PARTS = [
    *("a", "b", "foo", "*.py", "*", "**", "***", "?", "[ab]", "[!a]", "[[:upper:]]", "[a-c]"),
    *("/", ".git", "\\*", "\\", "!", "#", ";", " ", "[]a]", "build/", "/build", "**/", "/**"),
]
patterns = st.lists(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join), min_size=1, max_size=3
)


def by_rsync(root: Path, empty: Path, excludes: Sequence[str], filters: Sequence[str]) -> set[str]:
    command = ["rsync", "-a", "--dry-run", "--out-format=%n"]
    command += [word for pattern in excludes for word in ("--exclude", pattern)]
    command += [word for name in filters for word in ("--filter", f"dir-merge,- {name}")]
    done = subprocess.run(
        [*command, f"{root}/", str(empty)], check=True, capture_output=True, text=True
    )
    return {line.rstrip("/") for line in done.stdout.splitlines()} - {"."}


def by_us(root: Path, excludes: Sequence[str], filters: Sequence[str]) -> set[str]:
    return {path for path, _ in sent(root, rules(excludes, filters))}


def plant(root: Path) -> list[Path]:
    """A tree in which every name is a file in one place and a directory in another."""
    directories = [root]
    for offset in (0, 3, 5):
        below = directories[-1]
        for index, name in enumerate(NAMES):
            if (index + offset) % 3 == 0:
                (below / name).mkdir()
                (below / name / "leaf.py").touch()
                directories.append(below / name)
            else:
                (below / name).touch()
    return directories


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], Path]:
    root = tmp_path_factory.mktemp("tree")
    return root, plant(root), tmp_path_factory.mktemp("empty")


needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
quickly = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@needs_rsync
@quickly
@given(excludes=patterns)
def test_excludes_mean_what_they_mean_to_rsync(
    tree: tuple[Path, list[Path], Path], excludes: list[str]
) -> None:
    root, _, empty = tree
    assert by_us(root, excludes, []) == by_rsync(root, empty, excludes, [])


@needs_rsync
@quickly
@given(lines=patterns, place=st.integers(0, 12))
def test_filter_files_mean_what_they_mean_to_rsync(
    tree: tuple[Path, list[Path], Path], lines: list[str], place: int
) -> None:
    root, directories, empty = tree
    filter_file = directories[place % len(directories)] / ".gitignore"
    filter_file.write_text("# a remark\n\n" + "\n".join(lines) + "\n")
    try:
        ours = by_us(root, [], [".gitignore"])
        assert ours == by_rsync(root, empty, [], [".gitignore"])
    finally:
        filter_file.unlink()


@pytest.mark.parametrize(
    ("pattern", "path", "is_dir", "expected"),
    [
        ("*.pyc", "deep/down/x.pyc", False, True),
        ("**/.git", ".git", True, True),
        ("**/.git/**", ".git/config", False, True),
        ("/data", "data", True, True),
        ("/data", "sub/data", True, False),
        ("data/", "data", False, False),
        ("sub/data", "top/sub/data", True, True),
        ("logs/*", "logs/a/b", False, False),
        ("logs/**", "logs/a/b", False, True),
        ("logs/***", "logs", True, True),
        ("logs/**", "logs", True, False),
        ("*/**", "a", True, False),
        ("*/**", "a/b", False, True),
        ("[", "[", False, False),
    ],
)
def test_patterns(pattern: str, path: str, is_dir: bool, expected: bool) -> None:
    assert compile_rule(pattern).matches(path, is_dir) is expected


def test_an_include_spares_what_a_later_pattern_would_exclude() -> None:
    spared = rules(["+ keep.log", "*.log"], [])
    assert not spared.excludes("keep.log", False)
    assert spared.excludes("other.log", False)
