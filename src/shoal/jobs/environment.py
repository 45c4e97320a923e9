"""The Python packages that a job needs, as its requirements file names them. The nodes build the
environment (see scripts/node_environment.py); nothing is installed here."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import ConfigError

_EXPORT_SECONDS = 120.0
_INCLUDE = re.compile(r"^\s*(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)")
_LOCAL = re.compile(r"^\s*(?:-e\b|--editable\b|\.{0,2}/|\.\s*(?:$|\[))|@\s*file:")

_REGISTRY = re.compile(r'^source = \{ registry = "(https?://[^"]+)" \}', re.MULTILINE)
_PYPI = "https://pypi.org/simple"


@dataclass(frozen=True)
class Environment:
    """What the environment is built from. `files` by name: `main` is the one that uv or pip is
    given, the others are what it includes. `source` is the user's file, for messages."""

    main: str
    files: dict[str, bytes]
    source: str

    @property
    def digest(self) -> str:
        total = hashlib.sha256(self.main.encode())
        for name in sorted(self.files):
            total.update(name.encode() + b"\0" + hashlib.sha256(self.files[name]).digest())
        return total.hexdigest()[:24]


def environment(file: Path) -> Environment:
    """The environment that a requirements.txt, a pyproject.toml (its dependencies) or a uv.lock
    describes."""
    if file.is_dir():
        raise ConfigError(
            f"{file} is a directory",
            fix="name the file: requirements.txt, pyproject.toml or uv.lock",
        )
    if file.name == "uv.lock":
        return Environment("requirements.txt", {"requirements.txt": _exported(file)}, str(file))
    if file.name == "pyproject.toml":
        content = _read(file)
        _check_project(file, content)
        return Environment("pyproject.toml", {"pyproject.toml": content}, str(file))
    files: dict[str, bytes] = {}
    main = _add_requirements(file, files)
    return Environment(main, files, str(file))


def _add_requirements(file: Path, files: dict[str, bytes], depth: int = 0) -> str:
    """Add a requirements file and what it includes under names of our own, because it may include
    files of other directories. Returns its name."""
    name = f"requirements{len(files) or ''}.txt"
    files[name] = b""  # takes the name
    lines = []
    for number, line in enumerate(_read(file).decode(errors="replace").splitlines(), 1):
        text = line.split(" #")[0]
        if _LOCAL.search(text):
            raise _local_path(f"line {number} of {file}", text)
        if match := _INCLUDE.match(text):
            if depth > 10:
                raise ConfigError(f"{file} includes itself")
            included = _add_requirements(file.parent / match[1], files, depth + 1)
            line = text[: match.start(1)] + included
        lines.append(line)
    files[name] = ("\n".join(lines) + "\n").encode()
    return name


def _local_path(where: str, line: str) -> ConfigError:
    return ConfigError(
        f"{where} installs a local path",
        why=f"{line.strip()} is not on the nodes when they build the environment",
        fix="remove it: the code of the job can be imported without it",
    )


def _check_project(file: Path, content: bytes) -> None:
    """Raise `ConfigError` for a project whose dependencies are not in the file."""
    try:
        import tomllib  # type: ignore[import-not-found]
    except ImportError:
        return  # Python 3.10 cannot read it: the nodes do
    try:
        project = tomllib.loads(content.decode()).get("project")
    except ValueError as error:
        raise ConfigError(f"cannot read {file}", why=str(error)) from None
    if project is None or "dependencies" in project.get("dynamic", ()):
        raise ConfigError(
            f"{file} does not list the project's dependencies",
            why="it has no [project] table" if project is None else "they are dynamic",
            fix="pass a requirements.txt; with Poetry: poetry export --output requirements.txt",
        )


def _exported(file: Path) -> bytes:
    """The packages of a uv.lock as requirements with markers, so that they fit any platform. Ray
    itself is the cluster's."""
    uv = _find_uv()
    if uv is None:
        raise ConfigError(
            f"{file} can only be read by uv",
            why="uv is not installed on this machine",
            fix="install it: pip install uv\nor pass a requirements.txt",
        )
    if not file.is_file():
        _read(file)
    command = [
        *(uv, "export", "--frozen", "--no-emit-project", "--no-hashes", "--no-header"),
        *("--no-annotate", "--no-dev", "--no-emit-package", "ray", "--format=requirements-txt"),
        *("--directory", str(file.resolve().parent)),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_EXPORT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"uv did not read {file} within {_EXPORT_SECONDS:g} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise ConfigError(f"uv cannot read {file}", output=lines[-10:])
    for line in done.stdout.decode(errors="replace").splitlines():
        if _LOCAL.search(line):
            raise _local_path(str(file), line)
    return _index_options(_read(file).decode(errors="replace")).encode() + done.stdout


def _find_uv() -> str | None:
    """Also beside this Python, whose environment need not be activated."""
    directories = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    return shutil.which("uv", path=os.pathsep.join(directories))


def _index_options(lock: str) -> str:
    """The indexes that a uv.lock takes packages from, which uv does not export."""
    indexes = dict.fromkeys(_REGISTRY.findall(lock))
    others = [index for index in indexes if index != _PYPI]
    options = [f"--extra-index-url {index}" for index in others]
    if others and _PYPI not in indexes:
        options[0] = f"--index-url {others[0]}"
    return "".join(f"{option}\n" for option in options)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}", why=error.strerror or str(error)) from None
