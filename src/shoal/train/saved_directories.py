"""Directories that a script has written, made durable: `save` copies one to the job's checkpoint
directory, complete or not at all, and `latest_checkpoint` gives the newest one to any node."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from shoal.train import env

_FOLDER = "saved"
_PREFIX = "save-"
_MANIFEST = "shoal-manifest.json"
_KEPT = 2


def save(directory: str | os.PathLike[str]) -> str | None:
    """Make what the script has written to `directory` durable, and return where it is. Rank 0
    copies; on the others this does nothing. Without a checkpoint directory nothing is copied."""
    root = _root()
    if root is None or _rank() != 0:
        return None
    source = Path(directory)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    if not files:
        raise FileNotFoundError(f"nothing to save: {source} has no files")
    manifest = {str(path.relative_to(source)): _digest(path) for path in files}
    storage = _storage(root)
    numbers = sorted(storage.numbers())
    number = (numbers[-1] if numbers else 0) + 1
    storage.write(f"{_PREFIX}{number}", source, manifest)
    for old in numbers[: -(_KEPT - 1)]:
        storage.delete(f"{_PREFIX}{old}")
    return f"{root}/{_PREFIX}{number}"


def latest_checkpoint() -> str | None:
    """A local directory with the files of the newest complete `save` of this job, also of its
    earlier runs; None if there is none."""
    root = _root()
    if root is None:
        return None
    storage = _storage(root)
    for number in sorted(storage.numbers(), reverse=True):
        name = f"{_PREFIX}{number}"
        try:
            path = storage.fetch(name)
            manifest = json.loads((path / _MANIFEST).read_text())
            bad = [file for file, digest in manifest.items() if _digest(path / file) != digest]
        except (OSError, ValueError) as error:
            bad = [str(error)]
        if not bad:
            return str(path)
        print(f"shoal: {root}/{name} is damaged ({bad[0]}), trying the one before", flush=True)
    return None


def _root() -> str | None:
    path = env.checkpoint_path()
    return f"{path.rstrip('/')}/{_FOLDER}" if path else None


def _rank() -> int:
    if env.has_place() or "RANK" not in os.environ:
        return env.replica_rank()
    return int(os.environ["RANK"])


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _storage(root: str) -> _Local | _Remote:
    return _Remote(root) if "://" in root else _Local(Path(root))


def _number(name: str) -> int | None:
    number = name.removeprefix(_PREFIX)
    return int(number) if name.startswith(_PREFIX) and number.isdigit() else None


class _Local:
    def __init__(self, root: Path) -> None:
        self._root = root

    def numbers(self) -> list[int]:
        names = [path.name for path in self._root.iterdir()] if self._root.is_dir() else []
        return [number for name in names if (number := _number(name)) is not None]

    def write(self, name: str, source: Path, manifest: dict[str, str]) -> None:
        temporary = self._root / f"_{name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            for file in manifest:
                target = temporary / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / file, target)
                with target.open("rb") as copied:
                    os.fsync(copied.fileno())
            (temporary / _MANIFEST).write_text(json.dumps(manifest))
            temporary.rename(self._root / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def fetch(self, name: str) -> Path:
        return self._root / name

    def delete(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)


class _Remote:
    """Object stores have no rename: the manifest is written last and makes a save complete."""

    def __init__(self, root: str) -> None:
        import fsspec

        self._files: Any
        self._files, self._root = fsspec.core.url_to_fs(root)

    def numbers(self) -> list[int]:
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        names = (str(p).rstrip("/").rsplit("/", 1)[-1] for p in self._files.ls(self._root, False))
        return [number for name in names if (number := _number(name)) is not None]

    def write(self, name: str, source: Path, manifest: dict[str, str]) -> None:
        for file in manifest:
            target = f"{self._root}/{name}/{file}"
            self._files.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self._files.put_file(str(source / file), target)
        self._files.pipe_file(f"{self._root}/{name}/{_MANIFEST}", json.dumps(manifest).encode())

    def fetch(self, name: str) -> Path:
        """A copy for this process: several workers of a node may fetch at the same time."""
        local = Path(tempfile.mkdtemp(prefix=f"shoal-{name}-"))
        self._files.get(f"{self._root}/{name}", f"{local}/{name}", recursive=True)
        return local / name

    def delete(self, name: str) -> None:
        self._files.rm(f"{self._root}/{name}", recursive=True)
