"""The hash of the file mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.bootstrap.mount_files import MountFiles, files_hash, manifest
from shoal.core.errors import ConfigError
from shoal.spec import FilesSpec


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "code.py").write_text("print(1)")
    (root / "notes.log").write_text("noise")
    (root / "link").symlink_to("pkg")
    return root


def hash_of(root: Path, exclude: tuple[str, ...] = (), filters: tuple[str, ...] = ()) -> str:
    return files_hash(
        FilesSpec({"/remote": str(root)}, rsync_exclude=exclude, rsync_filter=filters)
    )


def test_changed_content_changes_the_hash(project: Path) -> None:
    before = hash_of(project)
    (project / "pkg" / "code.py").write_text("print(2)")
    assert hash_of(project) != before


def test_a_touched_file_does_not_change_the_hash(project: Path) -> None:
    before = hash_of(project)
    os.utime(project / "pkg" / "code.py", (1, 1))
    assert hash_of(project) == before


def test_a_new_mode_and_a_new_link_target_change_the_hash(project: Path) -> None:
    first = hash_of(project)
    (project / "pkg" / "code.py").chmod(0o755)
    second = hash_of(project)
    (project / "link").unlink()
    (project / "link").symlink_to("elsewhere")
    assert len({first, second, hash_of(project)}) == 3


def test_an_excluded_file_does_not_change_the_hash(project: Path) -> None:
    before = hash_of(project, exclude=("*.log",))
    (project / "notes.log").write_text("more noise")
    assert hash_of(project, exclude=("*.log",)) == before
    assert hash_of(project) != before


def test_a_file_that_gitignore_names_does_not_change_the_hash(project: Path) -> None:
    (project / "pkg" / ".gitignore").write_text("*.tmp\n")
    before = hash_of(project, filters=(".gitignore",))
    (project / "pkg" / "x.tmp").write_text("scratch")
    assert hash_of(project, filters=(".gitignore",)) == before
    (project / "x.tmp").write_text("not under that filter")
    assert hash_of(project, filters=(".gitignore",)) != before


def test_the_same_tree_in_another_place_has_the_same_hash(project: Path, tmp_path: Path) -> None:
    before = hash_of(project)
    assert hash_of(project.rename(tmp_path / "elsewhere")) == before


def test_the_order_of_mounts_does_not_matter_but_their_places_do(project: Path) -> None:
    one, two = {"/a": str(project)}, {"/b": str(project / "pkg")}
    assert files_hash(FilesSpec({**one, **two})) == files_hash(FilesSpec({**two, **one}))
    assert files_hash(FilesSpec(one)) != files_hash(FilesSpec({"/c": str(project)}))


def test_a_fifo_is_not_waited_for(project: Path) -> None:
    os.mkfifo(project / "pipe")
    assert hash_of(project) == hash_of(project)


def test_a_single_file_can_be_mounted_and_excluded(project: Path) -> None:
    file = project / "notes.log"
    kept, left_out = hash_of(file), hash_of(file, exclude=("*.log",))
    file.write_text("changed")
    assert hash_of(file) != kept
    assert hash_of(file, exclude=("*.log",)) == left_out


def test_a_mount_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        hash_of(tmp_path / "nowhere")


def test_the_list_of_a_mount_has_its_paths_and_its_size(project: Path) -> None:
    spec = FilesSpec({"/remote": str(project)}, rsync_exclude=("*.log",))
    expected = MountFiles(("link", "pkg", "pkg/code.py"), len("print(1)"))
    assert manifest(spec) == {"/remote": expected}


def test_the_hash_is_the_same_in_every_version(tmp_path: Path) -> None:
    """Otherwise a new version would send all files again."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o755)
    (tmp_path / "a" / "code.py").write_text("print(1)")
    (tmp_path / "a" / "code.py").chmod(0o644)
    (tmp_path / "a" / "link").symlink_to("code.py")
    assert hash_of(tmp_path / "a") == "52ajxlxlibmdcxedczn5p3tv5x2on7lh"
