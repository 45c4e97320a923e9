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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from shoal.jobs.sweep.metrics import collect
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
    directory = Path(tempfile.mkdtemp(prefix=f"shoal-run-{request['run']}-"))
    started = time.time()
    try:
        link_code(code, directory)
        argv = [sys.executable, *request["argv"]]
        ended = run_process(
            argv, cwd=directory, env=_environment(request, directory),
            time_limit=request["time_limit_s"], output_limit=request["output_bytes"],
        )  # fmt: skip
        text = ended.output.decode(errors="replace")
        with tempfile.TemporaryFile() as archive:
            notes = pack_files(directory, request["artifact_bytes"], archive)
            stored = _stored(archive, put)
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
            "metrics": collect(directory, text),
            "printed": ended.printed,
            "dropped": ended.dropped,
            "notes": notes,
            "output": ended.output,
            **stored,
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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


def pack_files(directory: Path, limit: int, target: IO[bytes]) -> list[str]:
    """Zip the files that the run wrote into `target`; nothing if there are none. The files that
    would exceed the limit are left out, the largest first, and named in the notes."""
    files = [
        (path.lstat().st_size, path)
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    ]
    total, notes = sum(size for size, _ in files), []
    files.sort(reverse=True)
    while files and total > limit:
        size, path = files.pop(0)
        total -= size
        notes.append(
            f"{path.relative_to(directory)} ({size:,} bytes) was not collected: the files of a run "
            f"may have {limit:,} bytes"
        )
    if not files:
        return notes
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for _, path in sorted(files, key=lambda item: item[1]):
            # Dates before 1980 are refused otherwise.
            info = zipfile.ZipInfo(str(path.relative_to(directory)))
            info.external_attr = (path.stat().st_mode & 0xFFFF) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as member:
                shutil.copyfileobj(source, member, CHUNK)
    return notes


def _environment(request: dict[str, Any], directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a segmentation fault prints where it happened
        "SHOAL_SWEEP": request["sweep"],
        "SHOAL_RUN": str(request["run"]),
        "SHOAL_RUN_DIR": str(directory),
    }


def _stored(archive: IO[bytes], put: Callable[[bytes], Any] | None) -> dict[str, Any]:
    """Ray sends small results with the reply; larger ones go through its object store."""
    size = archive.tell()
    archive.seek(0)
    if size <= CHUNK or put is None:
        return {"archive": archive.read(), "chunks": []}
    return {
        "archive": b"",
        "chunks": [put(part) for part in iter(lambda: archive.read(CHUNK), b"")],
    }
