"""Sees to it that one controller runs, and no second one: starts it, starts it again when it
dies, and ends it when asked.

The supervisor has loaded everything that a controller needs, and makes one by forking: on a busy
machine loading alone takes longer than a cluster should be without. It knows that the controller
lives by its lock, which goes with the process; the controller knows the supervisor by the same
means, and starts another when it is gone (`see_to_supervisor`). A controller that has its lock and
does nothing is ended as well: its loop leaves a sign at every turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shoal.controller.paths import (
    CONTROLLER_LOCK,
    DEPUTY_LOCK,
    HANDOVER,
    LOG,
    PULSE,
    SUPERVISOR_LOCK,
)
from shoal.core.backoff import backoff_delay
from shoal.core.file_lock import FileLock, lock_owner

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 3.0
# A controller that lived for so long did not die of its start.
_HEALTHY_SECONDS = 30.0
# How long a process may take to end when asked, and then when killed.
_GRACE_SECONDS = 5.0
_KILL_SECONDS = 10.0
# How often the controller's sign is looked for, and how many looks in a row may find no new one. A
# turn takes seconds, and half a minute where everything that it asks is slow to answer.
LOOK_SECONDS = 5.0
MOST_LOOKS = 12
# A loop that has not turned for so long stands still.
STILL_SECONDS = LOOK_SECONDS * MOST_LOOKS
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
    """Return when neither supervisor nor controller runs, nor a deputy. Nothing is ended but
    those."""
    (directory / HANDOVER).unlink(missing_ok=True)
    end(directory, SUPERVISOR_LOCK, CONTROLLER_LOCK, DEPUTY_LOCK)


def end(directory: Path, *locks: str) -> None:
    """Return when none of these locks is held any more."""
    asked_until = time.monotonic() + _GRACE_SECONDS
    killed_until = asked_until + _KILL_SECONDS
    while holders := [pid for name in locks if (pid := lock_owner(directory / name))]:
        now = time.monotonic()
        if now > killed_until:
            sys.exit(f"these processes do not end, not even when killed: {holders}")
        for pid in holders:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if now < asked_until else signal.SIGKILL)
        time.sleep(0.05)


def see_to_supervisor(directory: Path) -> bool:
    """Start a supervisor if there is none. Returns whether that was so."""
    with FileLock(directory / SUPERVISOR_LOCK) as lock:
        missing = lock.try_acquire()
    if missing:
        start(directory)
    return missing


def supervise(directory: Path, load: Callable[[], None], control: Callable[[], None]) -> None:
    """Run `control` in one process after the other until there is no handover any more. `load` is
    called once, before."""
    with FileLock(directory / SUPERVISOR_LOCK) as lock:
        if lock.try_acquire():
            lock.write_owner()
            _Supervisor(directory, lock, load, control).run()


class _Supervisor:
    def __init__(
        self, directory: Path, own: FileLock, load: Callable[[], None], control: Callable[[], None]
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
        # Interrupts the wait for the lock, which then goes on. A second thread would not do: who
        # forks must have none.
        watchdog = Watchdog(self._directory)
        signal.signal(signal.SIGALRM, lambda *_: watchdog.look())
        signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
        failures = 0
        child: int | None = None
        began = time.monotonic()
        while self._wanted():
            with FileLock(self._directory / CONTROLLER_LOCK) as lock:
                lock.acquire()  # returns when the last one has died
                code = _reaped(child)
                if not self._wanted():
                    return
                if child is not None:
                    healthy = time.monotonic() - began > _HEALTHY_SECONDS
                    failures = 0 if healthy else failures + 1
                    pause = backoff_delay(failures, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
                    _print(f"the controller ended with {code}, and starts again in {pause:.1f} s")
                    time.sleep(pause)
                began = time.monotonic()
                child = self._fork(lock)

    def _fork(self, lock: FileLock) -> int:
        """A controller that has the lock from its first moment on."""
        child = os.fork()
        if child:
            return child
        # The supervisor's lock must not outlive it here.
        self._own.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        code = 1
        try:
            lock.write_owner()
            self._control()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _wanted(self) -> bool:
        return (self._directory / HANDOVER).exists()


class Watchdog:
    """Kills a controller that lives and leaves no sign. Looks are counted, not seconds: while the
    whole machine sleeps, nobody looks and nobody is late."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: int | None = None
        self._in_vain = 0

    def look(self) -> None:
        """Look once."""
        sign = _changed_at(self._directory / PULSE)
        self._in_vain = self._in_vain + 1 if sign == self._seen else 0
        self._seen = sign
        if self._in_vain < MOST_LOOKS:
            return
        self._in_vain = 0
        if pid := lock_owner(self._directory / CONTROLLER_LOCK):
            _print(f"the controller stands still, and is killed: process {pid}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _reaped(child: int | None) -> int | None:
    """How a child that has ended did."""
    return None if child is None else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # it goes to a file, and the disk may be full
        print(text, flush=True)
