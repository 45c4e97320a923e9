"""Sees to it that one controller runs, and no second one: starts it, starts it again when it
dies, and ends it when asked.

The supervisor is small so that nothing in it can fail. Should it be killed all the same, the
controller notices that it is an orphan and becomes the next supervisor (`become_supervisor`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from shoal.controller.handover import FILE

_SUPERVISOR, _CONTROLLER = "supervisor.lock", "controller.lock"
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
# A controller that lived for so long did not die of its start.
_HEALTHY_SECONDS = 30.0
_GRACE_SECONDS = 5.0


def start(directory: Path) -> None:
    """Have a supervisor running. Returns at once; one that runs already is left alone."""
    with (directory / "controller.log").open("a") as log:
        subprocess.Popen(
            _command("supervise", directory),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def stop(directory: Path) -> None:
    """Return when neither supervisor nor controller runs. Nothing is ended but those."""
    (directory / FILE).unlink(missing_ok=True)
    deadline = time.monotonic() + _GRACE_SECONDS
    sign = signal.SIGTERM
    while holders := [pid for pid in map(_holder, _locks(directory)) if pid]:
        if time.monotonic() > deadline:
            sign = signal.SIGKILL
        for pid in holders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        time.sleep(0.05)


def supervise(directory: Path) -> None:
    """Run controllers one after the other until there is no handover any more."""
    with hold(directory / _SUPERVISOR) as held:
        if held:
            _Supervisor(directory).run()


def hold_controller(directory: Path) -> contextlib.AbstractContextManager[bool]:
    """The right to be the controller; false when another process has it."""
    return hold(directory / _CONTROLLER)


def become_supervisor(directory: Path) -> None:
    """Turn this process into the supervisor. Does not return."""
    command = _command("supervise", directory)
    os.execv(command[0], command)


@contextlib.contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Hold a lock that goes with the process, and write into it whose it is."""
    with path.open("a+") as file:
        if not _lock(file):
            yield False
            return
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield True


class _Supervisor:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._end)
        pause = _FIRST_PAUSE_SECONDS
        while self._wanted():
            began = time.monotonic()
            self._child = subprocess.Popen(_command("run", self._directory))
            if self._ending:
                self._child.terminate()  # the request came between the two lines above
            code = self._child.wait()
            if not self._wanted():
                return
            healthy = time.monotonic() - began > _HEALTHY_SECONDS
            pause = _FIRST_PAUSE_SECONDS if healthy else min(pause * 2, _LONGEST_PAUSE_SECONDS)
            print(f"the controller ended with {code}, and starts again in {pause:.1f} s")
            sys.stdout.flush()
            time.sleep(pause)

    def _wanted(self) -> bool:
        return not self._ending and (self._directory / FILE).exists()

    def _end(self, *_: object) -> None:
        self._ending = True
        if self._child is not None:
            self._child.terminate()


def _command(verb: str, directory: Path) -> list[str]:
    return [sys.executable, "-m", "shoal.controller", verb, str(directory)]


def _locks(directory: Path) -> list[Path]:
    return [directory / _SUPERVISOR, directory / _CONTROLLER]


def _holder(path: Path) -> int | None:
    """Whose a lock is; None if nobody has it."""
    if not path.exists():
        return None
    with path.open("r+") as file:
        if _lock(file):
            return None
        text = file.read()
    return int(text) if text.isdigit() else None


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
