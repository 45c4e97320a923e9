"""What a worker process leaves if it is killed is removed by its guard, a shell that notices its
end: the current run, and the directories of its runs.

Runs on nodes that may not have Shoal: it must import the standard library only.
"""

from __future__ import annotations

import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import IO

# Reads until the worker's end of the pipe closes, whatever closed it. A line is the id of the
# process group of the current run, or 0 when the run has ended. Never 1: `kill -- -1` ends every
# process that it may.
_GUARD = """g=0
while read -r group; do g=$group; done
[ "$g" -gt 1 ] && kill -s KILL -- "-$g"
rm -rf -- "$1"
"""
_guard: list[IO[bytes]] = []
_scratch: list[str] = []
# Directories to remove, if the thread that removes them runs.
_removals: list[queue.Queue[Path]] = []


def new_directory(name: str) -> Path:
    """An empty directory for a run of this process."""
    parent = _scratch_directory()
    try:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))
    except FileNotFoundError:  # removed by something that cleans temporary directories
        Path(parent).mkdir(mode=0o700)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=parent))


def remove_directory(directory: Path) -> None:
    """Remove it while the next run starts: some file systems take milliseconds for that. Waits if
    another one waits already."""
    if not _removals:
        _removals.append(queue.Queue(maxsize=1))
        threading.Thread(target=_remove, args=(_removals[0],), daemon=True).start()
    _removals[0].put(directory)


def _remove(directories: queue.Queue[Path]) -> None:
    while True:
        shutil.rmtree(directories.get(), ignore_errors=True)
        directories.task_done()


def wait_for_removals() -> None:
    """Return when no directory is left."""
    for directories in _removals:
        directories.join()


def guard_group(group: int) -> None:
    """Report the process group of the current run, or 0 for none, to the guard, which is started
    once."""
    if group < 0 or group == 1:
        raise ValueError(f"{group} is not the process group of a run")
    try:
        if not _guard:
            directory = _scratch_directory()
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "sh", directory], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                bufsize=0,
            )  # fmt: skip
            assert process.stdin is not None
            _guard.append(process.stdin)
        _guard[0].write(f"{group}\n".encode())
    except OSError:
        _guard.clear()  # it was killed: the next run starts another


def _scratch_directory() -> str:
    """The directory for all runs of this process."""
    if not _scratch:
        _scratch.append(tempfile.mkdtemp(prefix="shoal-runs-"))
    return _scratch[0]
