"""Named pieces of state that survive a restart, and where they are written.

A `State` is what AdaptDL's scripts subclass: `save(f)` and `load(f)` write and read a file,
`sync()` runs on all workers before a save. Only rank 0 writes. A checkpoint is a directory with one
file per state and a manifest with their checksums; it is written under another name and renamed
when it is complete. A directory whose manifest does not fit is skipped with a line.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from shoal.train import env

_MANIFEST = "manifest.json"
_PREFIX = "checkpoint-"
_KEPT = 2

_states: dict[str, State] = {}


class State:
    """A piece of state with a unique name. Subclass it and call `load_state` in the constructor."""

    positional = False  # tells where the script is, so it is restored before the others

    def __init__(self, name: str) -> None:
        if name in _states:
            raise ValueError(f"a state called {name!r} exists already")
        self.name = name
        _states[name] = self

    def save(self, fileobj: IO[bytes]) -> None:
        """Write the state."""

    def load(self, fileobj: IO[bytes]) -> None:
        """Read the state."""

    def sync(self) -> None:
        """Bring the state together from all workers, before rank 0 saves it."""

    def snapshot(self) -> Any:
        """The state as a value that `restore` takes, for workers that join. Tensors in dictionaries
        and lists travel without being pickled."""
        buffer = io.BytesIO()
        self.save(buffer)
        return buffer.getvalue()

    def restore(self, snapshot: Any) -> None:
        self.load(io.BytesIO(snapshot))

    def freeze(self) -> Callable[[], bytes]:
        """The state as it is now. What it returns is called in another thread."""
        buffer = io.BytesIO()
        self.save(buffer)
        return buffer.getvalue


# Brings together what the workers hold, when a script itself saves all states.
before_saving: Callable[[], None] | None = None


def states() -> list[State]:
    return list(_states.values())


def find_state(name: str) -> State | None:
    return _states.get(name)


def unregister(name: str) -> None:
    _states.pop(name, None)


_offered: dict[str, Any] = {}
_offered_positions: dict[str, Any] = {}


def offer(snapshots: dict[str, Any], positional_only: bool = False) -> None:
    """Snapshots from another worker, for states that the script has not created yet."""
    (_offered_positions if positional_only else _offered).clear()
    (_offered_positions if positional_only else _offered).update(snapshots)


def load_state(state: State) -> bool:
    """Load `state` from what another worker has sent, or from the newest whole checkpoint. False if
    neither has that state."""
    offered = _offered_positions if state.positional else _offered
    if state.name in offered:
        state.restore(offered.pop(state.name))
        return True
    checkpoint = _opened()
    content = checkpoint.read(state.name) if checkpoint is not None else None
    if content is None:
        return False
    state.load(io.BytesIO(content))
    return True


def save_state(state: State, directory: str | None, sync: bool = True) -> None:
    """Bring the state together on all workers; rank 0 writes it to a file in `directory`."""
    if sync:
        state.sync()
    if env.replica_rank() == 0 and directory is not None:
        with (Path(directory) / state.name).open("wb") as file:
            state.save(file)


def save_all_states() -> None:
    """Write a checkpoint of all states now. Workers other than rank 0 only take part."""
    if before_saving is not None:
        before_saving()
    for state in states():
        state.sync()
    path = env.checkpoint_path()
    if env.replica_rank() == 0 and path:
        write_checkpoint(path, serialize_all())


def serialize_all() -> dict[str, bytes]:
    result = {}
    for state in states():
        buffer = io.BytesIO()
        state.save(buffer)
        result[state.name] = buffer.getvalue()
    return result


def write_checkpoint(path: str, contents: dict[str, bytes]) -> str:
    """Write a complete checkpoint below `path`, a directory or an fsspec URL. Returns its name."""
    storage = _storage(path)
    names = storage.names()
    number = max((int(name.removeprefix(_PREFIX)) for name in names), default=-1) + 1
    name = f"{_PREFIX}{number}"
    storage.write(name, contents, _manifest(contents))
    for old in sorted(names, key=_number)[: -(_KEPT - 1)] if _KEPT > 1 else names:
        storage.delete(old)
    return name


def forget_opened() -> None:
    """The next `load_state` looks for the newest checkpoint again."""
    global _newest, _looked
    with _lock:
        _newest, _looked = None, False


class Writer:
    """Writes checkpoints one after another, away from the training thread."""

    def __init__(self, on_written: Callable[[str, int, float], None]) -> None:
        self._on_written = on_written
        self._thread: threading.Thread | None = None
        self.error = ""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, path: str, make_contents: Callable[[], dict[str, bytes]]) -> None:
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(path, make_contents), name="shoal-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, path: str, make_contents: Callable[[], dict[str, bytes]]) -> None:
        begun = time.monotonic()
        try:
            contents = make_contents()
            name = write_checkpoint(path, contents)
        except Exception as error:  # training goes on; the caller reports it
            self.error = f"{type(error).__name__}: {error}"
            return
        self.error = ""
        size = sum(map(len, contents.values()))
        self._on_written(f"{path.rstrip('/')}/{name}", size, time.monotonic() - begun)


# --- reading ---

_lock = threading.Lock()
_newest: _Checkpoint | None = None
_looked = False


class _Checkpoint:
    def __init__(self, storage: _Directory | _Remote, name: str, manifest: dict[str, str]) -> None:
        self._storage = storage
        self._name = name
        self._manifest = manifest

    def read(self, state: str) -> bytes | None:
        return self._storage.read(self._name, state) if state in self._manifest else None


def _opened() -> _Checkpoint | None:
    global _newest, _looked
    path = env.checkpoint_path()
    if env.from_ray() and env.replica_rank() != 0:
        return None  # rank 0 reads it and sends it to the others
    with _lock:
        if not _looked and path:
            _newest, _looked = _newest_whole(path), True
            if _newest is None and env.resumes():
                print(
                    f"shoal: no checkpoint in {path} on this node: training begins at the first "
                    "step. --checkpoint-dir must be a path or a URL that all nodes share",
                    flush=True,
                )
        return _newest


def _newest_whole(path: str) -> _Checkpoint | None:
    storage = _storage(path)
    for name in sorted(storage.names(), key=_number, reverse=True):
        try:
            manifest: dict[str, str] = json.loads(storage.read(name, _MANIFEST))
            bad = [s for s, digest in manifest.items() if _digest(storage.read(name, s)) != digest]
        except (OSError, ValueError) as error:
            bad = [str(error)]
        if not bad:
            return _Checkpoint(storage, name, manifest)
        print(f"shoal: checkpoint {name} is damaged ({bad[0]}), trying the one before", flush=True)
    return None


def _manifest(contents: dict[str, bytes]) -> bytes:
    return json.dumps({name: _digest(data) for name, data in contents.items()}).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _number(name: str) -> int:
    return int(name.removeprefix(_PREFIX))


def _is_checkpoint(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdigit()


def _storage(path: str) -> _Directory | _Remote:
    return _Remote(path) if "://" in path else _Directory(Path(path))


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        if not self._path.is_dir():
            return []
        return [entry.name for entry in self._path.iterdir() if _is_checkpoint(entry.name)]

    def read(self, name: str, file: str) -> bytes:
        return (self._path / name / _file_name(file)).read_bytes()

    def write(self, name: str, contents: dict[str, bytes], manifest: bytes) -> None:
        temporary = self._path / f"_{name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            for file, data in {**contents, _MANIFEST: manifest}.items():
                with (temporary / _file_name(file)).open("wb") as target:
                    target.write(data)
                    target.flush()
                    os.fsync(target.fileno())
            temporary.rename(self._path / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def delete(self, name: str) -> None:
        shutil.rmtree(self._path / name, ignore_errors=True)


class _Remote:
    """Object stores have no rename: the manifest is written last and makes a checkpoint whole."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._files, self._root = fsspec.core.url_to_fs(url)

    def names(self) -> list[str]:
        if not self._files.exists(self._root):
            return []
        found = (str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in self._list())
        return [name for name in found if _is_checkpoint(name)]

    def _list(self) -> list[Any]:
        self._files.invalidate_cache()
        return list(self._files.ls(self._root, detail=False))

    def read(self, name: str, file: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{name}/{_file_name(file)}"))

    def write(self, name: str, contents: dict[str, bytes], manifest: bytes) -> None:
        self._files.makedirs(f"{self._root}/{name}", exist_ok=True)
        for file, data in contents.items():
            self._files.pipe_file(f"{self._root}/{name}/{_file_name(file)}", data)
        self._files.pipe_file(f"{self._root}/{name}/{_MANIFEST}", manifest)

    def delete(self, name: str) -> None:
        self._files.rm(f"{self._root}/{name}", recursive=True)


def _file_name(state: str) -> str:
    return state.replace("/", "%2F")
