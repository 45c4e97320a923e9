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
