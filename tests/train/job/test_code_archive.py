from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.train.job import code_archive
from shoal.train.job.code_archive import changed_files, extract, pack


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "package").mkdir(parents=True)
    (root / "code.py").write_text("import package.part")
    (root / "package" / "part.py").write_text("")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("")
    (root / "env").mkdir()
    (root / "env" / "pyvenv.cfg").write_text("")
    (root / "env" / "python").write_text("")
    (root / "nowhere").symlink_to("missing")
    return root


def test_a_directory_arrives_without_its_environment_and_history(
    project: Path, tmp_path: Path
) -> None:
    extract(pack(project), tmp_path / "code")
    files = sorted(
        str(p.relative_to(tmp_path / "code"))
        for p in (tmp_path / "code").rglob("*.*")
        if p.is_file()
    )
    assert files == [".shoal-unpacked", "code.py", "package/part.py"]


def test_packages_go_beside_the_code_and_are_not_output(project: Path, tmp_path: Path) -> None:
    package = tmp_path / "adaptdl"
    package.mkdir()
    (package / "__init__.py").write_text("ours = True")
    extract(pack(project, [package]), tmp_path / "code")
    copied = tmp_path / "code" / ".shoal-lib" / "adaptdl" / "__init__.py"
    assert copied.read_text() == "ours = True"
    copied.write_text("changed")
    assert changed_files(tmp_path / "code") == []


def test_files_from_before_1980_can_be_packed(project: Path) -> None:
    os.utime(project / "code.py", (0, 0))
    assert pack(project)


def test_code_that_is_there_already_is_kept(project: Path, tmp_path: Path) -> None:
    archive = pack(project)
    extract(archive, tmp_path / "code")
    (tmp_path / "code" / "model.pt").write_text("trained")
    extract(archive, tmp_path / "code")
    assert (tmp_path / "code" / "model.pt").exists()


def test_changed_code_replaces_what_is_there(project: Path, tmp_path: Path) -> None:
    extract(pack(project), tmp_path / "code")
    (project / "code.py").write_text("changed")
    extract(pack(project), tmp_path / "code")
    assert (tmp_path / "code" / "code.py").read_text() == "changed"


def test_what_the_script_saved_or_changed_is_found(project: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    extract(pack(project), code)
    assert changed_files(code) == []
    (code / "out").mkdir()
    (code / "out" / "model.pt").write_text("trained")
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "x.pyc").write_text("")
    assert changed_files(code) == [code / "out" / "model.pt"]


def test_a_directory_that_is_too_large_is_refused_with_a_fix(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_archive, "MAX_BYTES", 10)
    with pytest.raises(ConfigError) as refused:
        pack(project)
    assert "--working-dir" in refused.value.fix
