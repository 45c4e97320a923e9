"""Git repositories for the tests of code snapshots."""

from __future__ import annotations

import subprocess
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
