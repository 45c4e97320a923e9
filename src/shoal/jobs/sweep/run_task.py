"""One run of a sweep on a node: the function that Ray runs as a task.

Every run has a directory of its own, with links to the files of the code: what it writes in its
current directory is its own, and is collected when it ends. Ray ships this module by value, to
nodes that may not have Shoal: it must import the standard library and modules of the same kind
only.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from shoal.jobs.sweep.metrics import collect
from shoal.jobs.sweep.run_guard import new_directory, remove_directory
from shoal.jobs.sweep.run_process import run_process

CHUNK = 8 * 2**20
# `.shoal-job` has the files of Shoal in a code package.
_IGNORED = {"__pycache__", ".git", ".shoal-job"}
_TAIL_LINES = 20


def task(request: dict[str, Any]) -> dict[str, Any]:
    """The body of the Ray task."""
    import ray

    return execute(request, ray.put)


def execute(request: dict[str, Any], put: Callable[[bytes], Any] | None = None) -> dict[str, Any]:
    """Run the script once. The result has everything that is kept of it: `output` and `archive`
    as bytes, or an archive of more than a chunk as `chunks`, each stored by `put`."""
    code = Path.cwd() / request["code"]
    directory = new_directory(f"run-{request['run']}")
    started = time.time()
    try:
        link_code(code, directory)
        argv = [sys.executable, *request["argv"]]
        ended = run_process(
            argv, cwd=directory, env=_environment(request, directory),
            time_limit=request["time_limit_s"], output_limit=request["output_bytes"],
        )  # fmt: skip
        text = ended.output.decode(errors="replace")
        written = written_files(directory)
        kept, notes = within_limit(directory, written, request["artifact_bytes"])
        return {
            "run": request["run"],
            "status": "timeout" if ended.timed_out else "failed" if ended.why else "ok",
            "exit_code": ended.code,
            "why": ended.why,
            "tail": text.splitlines()[-_TAIL_LINES:] if ended.why else [],
            "started": started,
            "seconds": round(ended.seconds, 3),
            "node": socket.gethostname(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "metrics": collect(written, text),
            "printed": ended.printed,
            "dropped": ended.dropped,
            "notes": notes,
            "output": ended.output,
            **_stored(directory, kept, put),
        }
    finally:
        remove_directory(directory)


def link_code(code: Path, directory: Path) -> None:
    """Link every file of the code into the directory, whose directories are its own."""
    pending = [(code, directory)]
    while pending:
        source, target = pending.pop()
        with os.scandir(source) as entries:
            for entry in entries:
                if entry.name in _IGNORED:
                    continue
                path = target / entry.name
                if entry.is_dir(follow_symlinks=False):
                    path.mkdir()
                    pending.append((Path(entry.path), path))
                else:
                    path.symlink_to(entry.path)


def written_files(directory: Path) -> list[Path]:
    """The files that the run wrote, in order; links to the code are not among them."""
    files, pending = [], [str(directory)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    files.append(Path(entry.path))
    return sorted(files)


def within_limit(
    directory: Path, files: Sequence[Path], limit: int
) -> tuple[list[Path], list[str]]:
    """The files that are kept, and a note for each that is not: the largest are left out until the
    others are within the limit."""
    sizes = {path: path.stat().st_size for path in files}
    total, notes = sum(sizes.values()), []
    for path in sorted(files, key=lambda path: sizes[path], reverse=True):
        if total <= limit:
            break
        size = sizes.pop(path)
        total -= size
        notes.append(
            f"{path.relative_to(directory)} ({size:,} bytes) was not collected: the files of a run "
            f"may have {limit:,} bytes"
        )
    return list(sizes), notes


def pack_files(directory: Path, files: Sequence[Path], target: IO[bytes]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in files:
            # Dates before 1980 are refused otherwise.
            info = zipfile.ZipInfo(str(path.relative_to(directory)))
            info.external_attr = (path.stat().st_mode & 0xFFFF) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as member:
                shutil.copyfileobj(source, member, CHUNK)


def _environment(request: dict[str, Any], directory: Path) -> dict[bytes, bytes]:
    """As bytes: a cluster's nodes have many variables, and decoding them takes as long as starting
    a process."""
    return {
        **os.environb,
        b"PYTHONUNBUFFERED": b"1",
        b"PYTHONFAULTHANDLER": b"1",  # a segmentation fault prints where it happened
        b"SHOAL_SWEEP": request["sweep"].encode(),
        b"SHOAL_RUN": str(request["run"]).encode(),
        b"SHOAL_RUN_DIR": os.fsencode(directory),
    }


def _stored(
    directory: Path, files: Sequence[Path], put: Callable[[bytes], Any] | None
) -> dict[str, Any]:
    """The archive of the files. Ray sends small ones with the reply; larger ones go through its
    object store."""
    if not files:
        return {"archive": b"", "chunks": []}
    with tempfile.TemporaryFile() as archive:
        pack_files(directory, files, archive)
        size = archive.tell()
        archive.seek(0)
        if size <= CHUNK or put is None:
            return {"archive": archive.read(), "chunks": []}
        chunks = [put(part) for part in iter(lambda: archive.read(CHUNK), b"")]
        return {"archive": b"", "chunks": chunks}
