"""What the environment of a job is built from."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.jobs.environment import environment


def test_included_files_are_part_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "b.txt").write_text("idna==3.6\n")
    main = tmp_path / "requirements.txt"
    main.write_text("-r base/b.txt\nhumanize  # for people\n")
    before = environment(main)
    assert before.files[before.main] == b"-r requirements1.txt\nhumanize  # for people\n"
    (tmp_path / "base" / "b.txt").write_text("idna==3.7\n")
    assert environment(main).digest != before.digest


@pytest.mark.parametrize("line", ["-e .", ".", "./lib", "../lib[x]", "lib @ file:///lib"])
def test_a_local_path_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"idna\n{line}\n")
    with pytest.raises(ConfigError, match="line 2"):
        environment(tmp_path / "requirements.txt")


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r requirements.txt\n")
    with pytest.raises(ConfigError, match="includes itself"):
        environment(tmp_path / "requirements.txt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*requirements\.txt"):
        environment(tmp_path / "requirements.txt")


LOCK = """
version = 1
requires-python = ">=3.13"

[[package]]
name = "demo"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "humanize" }, { name = "ray" }]

[[package]]
name = "humanize"
version = "4.9.0"
source = { registry = "http://index.example:8081" }
sdist = { url = "http://index.example:8081/humanize-4.9.0.tar.gz" }

[[package]]
name = "ray"
version = "2.9.0"
source = { registry = "http://index.example:8081" }
sdist = { url = "http://index.example:8081/ray-2.9.0.tar.gz" }
"""
PROJECT = """
[project]
name = "demo"
version = "0.1"
requires-python = ">=3.13"
dependencies = ["humanize", "ray"]
"""


def uv_project(directory: Path, lock: str = LOCK) -> Path:
    (directory / "pyproject.toml").write_text(PROJECT)
    (directory / "uv.lock").write_text(lock)
    return directory / "uv.lock"


def test_a_uv_lock_is_exported_with_its_index_and_without_ray(tmp_path: Path) -> None:
    """For another Python than the one here, and without a network."""
    exported = environment(uv_project(tmp_path))
    text = exported.files[exported.main].decode()
    assert text.split("\n") == ["--index-url http://index.example:8081", "humanize==4.9.0", ""]


def test_a_local_path_in_a_uv_lock_is_refused(tmp_path: Path) -> None:
    local = 'source = { directory = "lib" }'
    lock = LOCK.replace('source = { registry = "http://index.example:8081" }\nsdist', f"{local}\n#")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "pyproject.toml").write_text(PROJECT.replace("demo", "humanize"))
    with pytest.raises(ConfigError, match=r"uv\.lock installs a local path"):
        environment(uv_project(tmp_path, lock))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[tool.poetry.dependencies]\nidna = '*'\n", "no [project] table"),
        ("[project]\nname = 'a'\ndynamic = ['dependencies']\n", "dynamic"),
        ("[project\n", "Expected"),
    ],
)
def test_a_project_without_a_list_of_dependencies_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    pytest.importorskip("tomllib")
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        environment(tmp_path / "pyproject.toml")
    assert why in raised.value.why
