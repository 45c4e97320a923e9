"""The local directory of a sweep: what it runs, and the results that have arrived. Commands that
are given the same directory continue it.

    sweep.json     the sweep
    state.json     the Ray job that runs it, and on which cluster
    results.jsonl  a line for each run whose results are here
    runs/0001/     output.log, result.json, and files/ with what the run wrote
    sacred/1/      the directories of Sacred's FileStorageObserver, one for each run
"""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from shoal.core.atomic_write import write_atomically
from shoal.core.errors import ConfigError, NotFoundError, ShoalError
from shoal.core.file_lock import FileLock
from shoal.jobs.sweep.command import SACRED_DIRECTORY
from shoal.jobs.sweep.journal import (
    ARCHIVE_FILE,
    OUTPUT_FILE,
    RUNS,
    Journal,
    Result,
    read_results,
)
from shoal.jobs.sweep.sweep_spec import SPEC_FILE, SweepSpec, run_name

_STATE_FILE = "state.json"
_LOCK_FILE = ".lock"
_FILES = "files"
_SACRED = "sacred"
# What must be equal for a directory to be continued.
_IDENTITY = ("script", "style", "template", "arguments")


@dataclass(frozen=True)
class SweepState:
    """The Ray job that was started last. `attempt` counts the drivers."""

    cluster: str = ""
    job: str = ""
    attempt: int = 0
    code: str = ""
    requirements: str = ""


class SweepDirectory:
    """A local directory. A context manager: only one command uses it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None

    def __enter__(self) -> SweepDirectory:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK_FILE)
        except OSError as error:
            raise ConfigError(
                f"cannot write to {self.path}", why=error.strerror or str(error)
            ) from None
        if not lock.try_acquire():
            owner = lock.read_owner()
            lock.close()
            raise ConfigError(
                f"another command uses {self.path}",
                why=f"process {owner}" if owner else "",
                fix="wait for it, or stop it: the sweep goes on without it",
            )
        lock.write_owner()
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def exists(self) -> bool:
        return (self.path / SPEC_FILE).is_file()

    def load(self) -> SweepSpec:
        try:
            return SweepSpec.from_json((self.path / SPEC_FILE).read_text())
        except FileNotFoundError:
            raise NotFoundError(
                f"no sweep in {self.path}",
                why=f"it has no {SPEC_FILE}",
                fix="pass the directory that `shoal sweep` wrote its results to",
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise ShoalError(f"cannot read {self.path / SPEC_FILE}", why=str(error)) from None

    def continued(self, spec: SweepSpec) -> SweepSpec:
        """This sweep as the continuation of the one in the directory: with its id, and the numbers
        of its runs. Settings such as the resources are those of the new one."""
        if not self.exists:
            return spec
        before = self.load()
        for name in _IDENTITY:
            if getattr(before, name) != getattr(spec, name):
                raise ConfigError(
                    f"{self.path} has the results of another sweep",
                    why=f"its {name} is {getattr(before, name)!r}, not {getattr(spec, name)!r}",
                    fix="use another directory: --output DIR",
                )
        entries = asdict(spec)
        entries |= {"id": before.id, "created": before.created, "runs": before.runs}
        return SweepSpec(**entries).with_params([run.params for run in spec.runs])

    def save(self, spec: SweepSpec) -> None:
        if any(self.path.iterdir()) and not self.exists:
            others = [p.name for p in self.path.iterdir() if p.name != _LOCK_FILE]
            if others:
                raise ConfigError(
                    f"{self.path} is not empty",
                    why=f"it has {others[0]}, and no sweep",
                    fix="use another directory: --output DIR",
                )
        # Results must not become part of the code that the next sweep sends.
        write_atomically(self.path / ".gitignore", "*\n")
        write_atomically(self.path / SPEC_FILE, spec.to_json())

    def state(self) -> SweepState:
        try:
            return SweepState(**json.loads((self.path / _STATE_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return SweepState()

    def save_state(self, state: SweepState) -> None:
        write_atomically(self.path / _STATE_FILE, json.dumps(asdict(state), indent=1))

    def results(self) -> dict[int, Result]:
        return read_results(self.path)

    def store(self, results: Sequence[Result], archive: IO[bytes]) -> None:
        """Add runs, whose directories on the head are in a tar archive."""
        journal = Journal(self.path)
        with tarfile.open(fileobj=archive, mode="r|*") as members:
            names = {run_name(result["run"]): result for result in results}
            for member in members:
                name, _, file = member.name.removeprefix("./").partition("/")
                if name in names and member.isfile() and file in (OUTPUT_FILE, ARCHIVE_FILE):
                    target = self.path / RUNS / f".{name}" / file
                    target.parent.mkdir(exist_ok=True)
                    source = members.extractfile(member)
                    assert source is not None
                    with target.open("wb") as copy:
                        shutil.copyfileobj(source, copy)
        for name, result in names.items():
            temporary, target = self.path / RUNS / f".{name}", journal.run_directory(result["run"])
            if not (temporary / OUTPUT_FILE).exists():
                raise ShoalError(f"the results of run {result['run']} did not arrive")
            self._unpack(temporary)
            (temporary / "result.json").write_text(json.dumps(result, indent=1))
            if target.exists():
                shutil.rmtree(target)
            temporary.rename(target)
            journal.append(result)

    def _unpack(self, directory: Path) -> None:
        archive = directory / ARCHIVE_FILE
        if not archive.exists():
            return
        with zipfile.ZipFile(archive) as files:
            files.extractall(directory / _FILES)
        archive.unlink()
        sacred = directory / _FILES / SACRED_DIRECTORY
        if sacred.is_dir():
            _merge(sacred, self.path / _SACRED)
            if not any((directory / _FILES).iterdir()):
                (directory / _FILES).rmdir()


def _merge(source: Path, target: Path) -> None:
    """Move the runs of a Sacred directory to another. Sources and resources are named by content:
    the runs share them."""
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.name.startswith("_"):
            shutil.copytree(entry, target / entry.name, dirs_exist_ok=True)
        else:
            # Sacred writes these only if a run has some; tools such as incense read both.
            for name in ("info.json", "metrics.json"):
                if entry.is_dir() and not (entry / name).exists():
                    (entry / name).write_text("{}")
            shutil.rmtree(target / entry.name, ignore_errors=True)
            shutil.move(entry, target / entry.name)
    shutil.rmtree(source)
