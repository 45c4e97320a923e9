"""Runs a command so that nothing of it outlives the benchmark: `contained.py COMMAND...`.

The benchmark holds the other end of standard input. When that closes, also because the benchmark
was killed, every process of the command is killed, those in sessions of their own too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_END_S = 30.0


@contextlib.contextmanager
def contained(command: list[str], log: Path | None = None, /, **environment: str) -> Iterator[int]:
    """The command runs in the block, and its output goes to `log`. Afterwards nothing of it is
    left. Yields the process id of its supervisor."""
    with (
        (log or Path(os.devnull)).open("ab") as output,
        subprocess.Popen(
            [sys.executable, __file__, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        ) as supervisor,
    ):
        assert supervisor.stdin is not None
        try:
            yield supervisor.pid
        finally:
            supervisor.stdin.close()
            supervisor.wait(_END_S)


def main() -> NoReturn:
    # Processes whose parent has ended become children of this one.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the benchmark ends, and so closes the pipe
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    subprocess.Popen(sys.argv[1:])
    while os.read(pipe, 1):
        pass
    _kill_descendants()
    os._exit(0)


def _kill_descendants() -> None:
    this = psutil.Process()
    while children := this.children(recursive=True):
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(children, timeout=1)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
