"""Sees to it that one controller runs, and no second one: starts it, starts it again when it
dies, and ends it when asked.

The supervisor has loaded everything that a controller needs, and makes one by forking: on a busy
machine loading alone takes longer than a cluster should be without. It knows that the controller
lives by its lock, which goes with the process; the controller knows the supervisor by the same
means, and starts another when it is gone (`see_to_supervisor`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from shoal.controller.places import CONTROLLER_LOCK, HANDOVER, LOG, SUPERVISOR_LOCK

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 3.0
# A controller that lived for so long did not die of its start.
_HEALTHY_SECONDS = 30.0
# How long a process may take to end when asked, and then when killed.
_GRACE_SECONDS = 5.0
_KILL_SECONDS = 10.0


# macOS ends a process that forks after it has loaded certain libraries, unless told that it may.
_MAY_FORK = {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}


def start(directory: Path) -> None:
    """Have a supervisor running. Returns at once; one that runs already is left alone."""
    with (directory / LOG).open("a") as log:
        subprocess.Popen(
            [sys.executable, "-m", "shoal.controller", "supervise", str(directory)],
            env={**os.environ, **_MAY_FORK},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def stop(directory: Path) -> None:
    """Return when neither supervisor nor controller runs. Nothing is ended but those."""
    (directory / HANDOVER).unlink(missing_ok=True)
    asked_until = time.monotonic() + _GRACE_SECONDS
    killed_until = asked_until + _KILL_SECONDS
    while holders := _holders(directory):
        now = time.monotonic()
        if now > killed_until:
            sys.exit(f"these processes do not end, not even when killed: {holders}")
        for pid in holders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if now < asked_until else signal.SIGKILL)
        time.sleep(0.05)


def see_to_supervisor(directory: Path) -> bool:
    """Start a supervisor if there is none. Returns whether that was so."""
    with Lock(directory / SUPERVISOR_LOCK) as lock:
        missing = lock.take()
    if missing:
        start(directory)
    return missing


def supervise(directory: Path, load: Callable[[], None], control: Callable[[], None]) -> None:
    """Run `control` in one process after the other until there is no handover any more. `load` is
    called once, before."""
    with Lock(directory / SUPERVISOR_LOCK) as lock:
        if lock.take():
            lock.sign()
            _Supervisor(directory, lock, load, control).run()


class Lock:
    """A file that one process has at a time, and that names it. It goes with the process, however
    that ends."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a+")

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, *, wait: bool = False) -> bool:
        """Whether this process has it now. With `wait`, as soon as nobody else does."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def sign(self) -> None:
        """Write down whose it is."""
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def signature(self) -> int | None:
        """Who signed last."""
        self._file.seek(0)
        text = self._file.read()
        return int(text) if text.isdigit() else None


class _Supervisor:
    def __init__(
        self, directory: Path, own: Lock, load: Callable[[], None], control: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._own = own
        self._load = load
        self._control = control

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            self._load()
        except Exception as error:  # the controller will fail in the same way, and say so
            _print(f"the controller cannot be loaded: {error}")
        pause = _FIRST_PAUSE_SECONDS
        child: int | None = None
        began = time.monotonic()
        while self._wanted():
            with Lock(self._directory / CONTROLLER_LOCK) as lock:
                lock.take(wait=True)  # returns when the last one has died
                code = _reaped(child)
                if not self._wanted():
                    return
                if child is not None:
                    healthy = time.monotonic() - began > _HEALTHY_SECONDS
                    pause = _FIRST_PAUSE_SECONDS if healthy else pause * 2
                    pause = min(pause, _LONGEST_PAUSE_SECONDS)
                    _print(f"the controller ended with {code}, and starts again in {pause:.1f} s")
                    time.sleep(pause)
                began = time.monotonic()
                child = self._fork(lock)

    def _fork(self, lock: Lock) -> int:
        """A controller that has the lock from its first moment on."""
        child = os.fork()
        if child:
            return child
        # The supervisor's lock must not outlive it here.
        self._own.__exit__()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = 1
        try:
            lock.sign()
            self._control()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _wanted(self) -> bool:
        return (self._directory / HANDOVER).exists()


def _reaped(child: int | None) -> int | None:
    """How a child that has ended did."""
    return None if child is None else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _holders(directory: Path) -> list[int]:
    """The processes that hold a lock now."""
    found = []
    for name in (SUPERVISOR_LOCK, CONTROLLER_LOCK):
        if (directory / name).exists():
            with Lock(directory / name) as lock:
                if not lock.take() and (pid := lock.signature()):
                    found.append(pid)
    return found


def _print(text: str) -> None:
    print(text, flush=True)
