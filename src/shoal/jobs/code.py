"""A snapshot of the user's code: the files of a directory that git does not ignore, as they are
now, and where they come from."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import ConfigError

MAX_BYTES = 90 << 20  # the dashboard accepts packages of 100 MiB
# Names that are never code, for a directory without git.
EXCLUDED = {
    ".git", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox",
    ".ipynb_checkpoints", "node_modules", ".DS_Store",
}  # fmt: skip
# The directory of a package that holds the files of Shoal.
SUPPORT_DIRECTORY = ".shoal-job"
_NAMED_FILES = 5
_MAX_DIFF = 1 << 20
_GIT_SECONDS = 60.0


@dataclass(frozen=True)
class CodeFile:
    """One file of a snapshot. `path` is relative, with slashes; `content` is where to read it.
    `link` is the target if it is a symbolic link: nodes get what it points to, because Ray's
    packages have no links, and `shoal job code` restores the link."""

    path: str
    content: Path
    executable: bool
    sha256: str
    size: int
    link: str = ""


@dataclass(frozen=True)
class GitState:
    """Where a snapshot comes from; empty without git. `diff` are the uncommitted changes, without
    untracked files. `dirty` if the snapshot differs from the commit."""

    commit: str = ""
    branch: str = ""
    dirty: bool = False
    diff: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The files of a directory. `digest` is over names, modes and content. `links` are symbolic
    links without a file behind them, `shadowed` the modules of the standard library that a
    top-level module or package of the snapshot hides, `skipped` the files that cannot be sent."""

    directory: Path
    files: tuple[CodeFile, ...]
    git: GitState = GitState()
    links: dict[str, str] = field(default_factory=dict)
    shadowed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        total = hashlib.sha256()
        for file in self.files:
            total.update(f"{file.path}\0{file.executable}\0{file.link}\0{file.sha256}\n".encode())
        for path, target in sorted(self.links.items()):
            total.update(f"{path}\0{target}\n".encode())
        return total.hexdigest()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def manifest(self) -> dict[str, Any]:
        """The content of the snapshot as plain data, by which its tree can be restored."""
        return {
            "digest": self.digest,
            "files": [[f.path, f.executable, f.link, f.sha256] for f in self.files],
            "links": self.links,
        }


def snapshot(directory: Path) -> Snapshot:
    """The code in a directory: with git, tracked and untracked files that it does not ignore,
    submodules included; without, all files but caches and virtual environments."""
    if not directory.is_dir():
        raise ConfigError(
            f"no code in {directory}",
            why="it is not a directory" if directory.exists() else "no such directory",
        )
    root = directory.resolve()
    paths = _paths_by_git(root)
    has_git = paths is not None
    links: dict[str, str] = {}
    skipped: list[str] = []
    found: dict[str, Path] = {}
    for path in _files_below(root) if paths is None else paths:
        _collect(root, path, found, links, skipped)
    _check_size(directory, found)
    files = tuple(_code_file(root, path, found[path]) for path in sorted(found))
    state = _git_state(root, files) if has_git else GitState()
    return Snapshot(
        root, files, state, links, _shadowed([file.path for file in files]), tuple(sorted(skipped))
    )


def _collect(
    root: Path, path: str, found: dict[str, Path], links: dict[str, str], skipped: list[str]
) -> None:
    """Add a path to `found`, or what is below it if it is a link to a directory."""
    parts = path.split("/")
    if parts[0] == SUPPORT_DIRECTORY:
        return
    try:
        path.encode()
    except UnicodeEncodeError:
        skipped.append(path.encode(errors="replace").decode())
        return
    if "\\" in path:  # Ray does not unpack such a file
        skipped.append(path)
        return
    full = root / path
    if full.is_symlink():
        if full.is_file():
            found[path] = full
            return
        links[path] = str(full.readlink())
        target = full.resolve()
        # What a link to a directory inside of the tree shows, and not the tree in itself.
        if target.is_dir() and root in target.parents and target not in full.absolute().parents:
            for below in _files_below(target):
                _collect(root, f"{path}/{below}", found, {}, skipped)
        return
    if full.is_dir():  # a submodule or a repository inside of this one
        inner = _paths_by_git(full)
        for below in _files_below(full) if inner is None else inner:
            _collect(root, f"{path}/{below}", found, links, skipped)
    elif full.is_file():
        found[path] = full


def _code_file(root: Path, path: str, full: Path) -> CodeFile:
    try:
        content = full.read_bytes()
        mode = full.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read {full}", why=error.strerror or str(error)) from None
    link = str(full.readlink()) if full.is_symlink() else ""
    digest = hashlib.sha256(content).hexdigest()
    return CodeFile(path, full, bool(mode & stat.S_IXUSR), digest, len(content), link)


def _check_size(directory: Path, found: dict[str, Path]) -> None:
    sizes = {path: full.stat().st_size for path, full in found.items()}
    total = sum(sizes.values())
    if total <= MAX_BYTES:
        return
    largest = sorted(sizes, key=lambda path: (-sizes[path], path))[:_NAMED_FILES]
    raise ConfigError(
        f"the code in {directory} is larger than {MAX_BYTES >> 20} MiB",
        why=f"it has {total / (1 << 20):.1f} MiB in {len(sizes)} files; Ray's dashboard does not "
        "accept more",
        fix="add data to .gitignore, and copy it with `shoal rsync-up` or file_mounts",
        output=[f"{sizes[path] / (1 << 20):8.1f} MiB  {path}" for path in largest],
    )


def _paths_by_git(root: Path) -> list[str] | None:
    """The paths that git does not ignore; None without git, or if `root` itself is ignored."""
    listed = _git(root, "ls-files", "-co", "--exclude-standard", "-z", check=True)
    if listed is None or (not listed and _git(root, "check-ignore", "-q", ".") is not None):
        return None
    paths = {os.fsdecode(path).rstrip("/") for path in listed.split(b"\0") if path}
    # Still in the index, but deleted.
    return sorted(path for path in paths if os.path.lexists(root / path))


def _files_below(root: Path) -> Iterator[str]:
    for parent, directories, files in os.walk(root):
        kept = sorted(d for d in directories if not _is_excluded(Path(parent) / d))
        linked = [d for d in kept if (Path(parent) / d).is_symlink()]
        directories[:] = [d for d in kept if d not in linked]
        for name in sorted([*files, *linked]):
            if name not in EXCLUDED and not name.endswith((".pyc", ".pyo")):
                yield (Path(parent) / name).relative_to(root).as_posix()


def _is_excluded(path: Path) -> bool:
    return path.name in EXCLUDED or (path / "pyvenv.cfg").exists()


def _git_state(root: Path, files: Sequence[CodeFile]) -> GitState:
    branch = _git_text(root, "symbolic-ref", "--short", "-q", "HEAD")
    commit = _git_text(root, "rev-parse", "--verify", "-q", "HEAD")
    if not commit:  # no commit yet
        return GitState(branch=branch, dirty=bool(files))
    changed = _git(root, "status", "--porcelain", "-z", ".") or b""
    diff = _git(root, "diff", "--binary", "--relative", "HEAD", "--", ".") or b""
    text = diff[:_MAX_DIFF].decode(errors="replace")
    return GitState(commit, branch, bool(changed), text)


def _git_text(root: Path, *arguments: str) -> str:
    return (_git(root, *arguments) or b"").decode(errors="replace").strip()


def _git(root: Path, *arguments: str, check: bool = False) -> bytes | None:
    """What git prints; None if it fails or is not installed. With `check`, None only where there is
    no repository."""
    # Hooks and scripts that git starts have variables that select another repository.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env["LC_ALL"] = "C"
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_SECONDS
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"git did not answer within {_GIT_SECONDS:g} s", why=" ".join(command)
        ) from None
    if done.returncode == 0:
        return done.stdout
    message = done.stderr.decode(errors="replace").strip()
    if check and "not a git repository" not in message and "not a working tree" not in message:
        # Such as a repository of another user. All files, ignored ones included, would be wrong.
        raise ConfigError(f"git cannot list the files in {root}", why=message)
    return None


def _shadowed(paths: Sequence[str]) -> tuple[str, ...]:
    """The modules of the standard library with the name of a top-level module or package."""
    names = set()
    for path in paths:
        first, _, rest = path.partition("/")
        if not rest and first.endswith(".py"):
            names.add(first[:-3])
        elif rest == "__init__.py":
            names.add(first)
    return tuple(sorted(names & sys.stdlib_module_names))
