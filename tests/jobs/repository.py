"""Git repositories and packages for the tests of jobs."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path


def git(directory: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    command += ["-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(directory: Path, **files: str) -> Path:
    """A repository with one commit of these files; `__` in a name is a dot."""
    directory.mkdir(parents=True, exist_ok=True)
    git(directory, "init", "-q", "-b", "main")
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_text(content)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "--allow-empty", "-m", "one")
    return directory


def wheel(directory: Path) -> Path:
    """A package that only exists here, so that no index is needed."""
    info = "shoaltest-1.0.dist-info"
    path = directory / "shoaltest-1.0-py3-none-any.whl"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("shoaltest.py", "VALUE = 6\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: shoaltest\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/RECORD",
            f"shoaltest.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        )
    return path
