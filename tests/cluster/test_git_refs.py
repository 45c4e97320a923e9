"""A mounted git ref is sent although it has no file of its own."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cluster.git_refs import with_ref_files
from shoal.spec.cluster_spec import ClusterSpec, FilesSpec
from tests.specs import cluster


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(directory), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    git(path, "init", "-q", "-b", "feature/one")
    git(path, "commit", "-q", "--allow-empty", "-m", "first")
    return path


def mounting(source: Path) -> ClusterSpec:
    return replace(cluster(), files=FilesSpec(mounts={"/tmp/commit": str(source)}))


def mounted(source: Path, home: Path) -> Path:
    return Path(with_ref_files(mounting(source), home).files.mounts["/tmp/commit"])


def test_a_ref_with_a_file_is_mounted_as_it_is(repository: Path, tmp_path: Path) -> None:
    ref = repository / ".git/refs/heads/feature/one"
    assert mounted(ref, tmp_path / "home") == ref


def test_a_packed_ref_is_the_commit_that_git_names(repository: Path, tmp_path: Path) -> None:
    ref = repository / ".git/refs/heads/feature/one"
    git(repository, "pack-refs", "--all")
    git(repository, "checkout", "-q", "--detach")
    assert not ref.exists()
    for message in ("second", "third"):
        assert (
            mounted(ref, tmp_path / "home").read_text()
            == f"{git(repository, 'rev-parse', 'feature/one')}\n"
        )
        git(repository, "commit", "-q", "--allow-empty", "-m", message)
        git(repository, "branch", "-f", "feature/one")
        git(repository, "pack-refs", "--all")


def test_a_worktree_has_the_refs_of_its_repository(repository: Path, tmp_path: Path) -> None:
    worktree = tmp_path / "worktree"
    git(repository, "worktree", "add", "-q", "-b", "two", str(worktree))
    content = mounted(worktree / ".git/refs/heads/two", tmp_path / "home").read_text()
    assert content == f"{git(worktree, 'rev-parse', 'HEAD')}\n"


@pytest.mark.parametrize("name", ["missing", "../../config", "-h"])
def test_what_is_no_ref_is_reported_as_a_missing_file(
    repository: Path, tmp_path: Path, name: str
) -> None:
    source = repository / ".git/refs/heads" / name
    assert mounted(source, tmp_path / "home") == source


def test_a_directory_that_is_no_repository_is_left_alone(tmp_path: Path) -> None:
    source = tmp_path / "nothing/.git/refs/heads/main"
    assert mounted(source, tmp_path / "home") == source
