"""Keeps exactly one controller running: starts it, restarts it when it dies, and stops it.

The supervisor imports everything that a controller needs and forks it, because on a busy machine
the imports alone take longer than a cluster should be without a controller. The controller's lock,
which ends with its process, shows that it lives; the controller watches the supervisor's lock in
the same way and starts another (`ensure_supervisor`). A controller that holds its lock but is
stalled is killed: its loop updates the heartbeat file in every iteration.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from shoal.controller import controller_config, heartbeat
from shoal.controller.paths import (
    CONFIG,
    CONTROLLER_LOCK,
    LOG,
    PREPARED_CONFIG,
    RESTARTS,
    STANDBY_LOCK,
    SUPERVISOR_LOCK,
)
from shoal.core.atomic_write import write_atomically
from shoal.core.backoff import backoff_delay
from shoal.core.file_lock import FileLock, lock_owner
from shoal.core.logs import suppress_and_log
from shoal.core.own_commands import COMMAND_VARIABLE

_log = logging.getLogger(__name__)

_FIRST_BACKOFF_SECONDS = 0.2
_LONGEST_BACKOFF_SECONDS = 3.0
# A controller that lived this long did not die of its start.
_HEALTHY_SECONDS = 30.0
# How long a process may take to exit after SIGTERM, and then after SIGKILL.
_TERM_SECONDS = 5.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.05
# Commands that test whether a supervisor runs hold its lock for a moment.
_LOCK_TEST_SECONDS = 1.0
# Restarts within this time are counted, and more than so many are too many.
RESTART_WINDOW_SECONDS = 60.0
MAX_RESTARTS = 3
MAX_LOG_BYTES = 10_000_000
# Without this, macOS ends a process that forks after it has loaded certain libraries.
_FORK_ENVIRONMENT = {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}


def start(directory: Path) -> bool:
    """Start a supervisor unless one runs, and return at once. Returns whether it was started. A
    supervisor that is about to exit sees the config, which the caller wrote first, and goes on."""
    with FileLock(directory / SUPERVISOR_LOCK) as lock:
        is_missing = not lock.is_held_elsewhere()
    if is_missing:
        spawn(directory, "supervise")
    return is_missing


def spawn(directory: Path, command: str, *args: str) -> None:
    """Start a controller command as a daemon, with its output in the log file."""
    env = {**os.environ, **_FORK_ENVIRONMENT}
    env.pop(COMMAND_VARIABLE, None)  # it outlives the command that starts it
    with (directory / LOG).open("a") as log:
        subprocess.Popen(
            [sys.executable, "-m", "shoal.controller", command, str(directory), *args],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def stop(directory: Path) -> None:
    """Stop supervisor, controller and standby, and return when none of them runs."""
    for name in (CONFIG, PREPARED_CONFIG):
        (directory / name).unlink(missing_ok=True)
    stop_holders(directory, SUPERVISOR_LOCK, CONTROLLER_LOCK, STANDBY_LOCK)


def stop_holders(directory: Path, *locks: str) -> None:
    """Stop the processes that hold these locks, and return when the locks are free."""
    term_until = time.monotonic() + _TERM_SECONDS
    kill_until = term_until + _KILL_SECONDS
    while holders := [pid for name in locks if (pid := lock_owner(directory / name))]:
        now = time.monotonic()
        if now > kill_until:
            sys.exit(f"could not kill these processes: {holders}")
        for pid in holders:
            with suppress_and_log(_log, f"signal process {pid}", ProcessLookupError):
                os.kill(pid, signal.SIGTERM if now < term_until else signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def ensure_supervisor(directory: Path) -> bool:
    """Start a supervisor if none runs. Returns whether it was started."""
    was_started = start(directory)
    if was_started:
        _log.warning("the supervisor was gone; started another")
    return was_started


def supervise(directory: Path, load: Callable[[], None], control: Callable[[], None]) -> None:
    """Run `control` in one child process after the other until the config is removed. `load` is
    called once, before the first. A controller that is prepared runs before there is a config."""
    while True:
        with FileLock(directory / SUPERVISOR_LOCK) as lock:
            if not lock.acquire_within(_LOCK_TEST_SECONDS):
                return
            lock.write_owner()
            _Supervisor(directory, lock, load, control).run()
        # A command that found the lock held did not start another supervisor for its config.
        if not controller_config.should_run(directory):
            return


class _Supervisor:
    def __init__(
        self,
        directory: Path,
        own_lock: FileLock,
        load: Callable[[], None],
        control: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._own_lock = own_lock
        self._load = load
        self._control = control
        self._restarts: list[float] = []

    def run(self) -> None:
        _log.info("supervisor started, process %d", os.getpid())
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            self._load()
        except Exception as error:  # the controller fails in the same way, and reports it
            _log.error("could not import the controller: %s", error)
        # The signal interrupts the wait for the lock, which then continues. A thread is not
        # possible: a process that forks must have only one.
        watchdog = heartbeat.Watchdog(self._directory)

        def on_alarm(*_: object) -> None:
            if (self._directory / CONFIG).exists():  # before, there is no heartbeat
                watchdog.check()
            rotate_log(self._directory / LOG)

        signal.signal(signal.SIGALRM, on_alarm)
        interval = heartbeat.CHECK_SECONDS
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        failures = 0
        child: int | None = None
        began = time.monotonic()
        while self._should_run():
            with FileLock(self._directory / CONTROLLER_LOCK) as lock:
                lock.acquire()  # returns when the previous controller has died
                exit_code = _wait_for_exit(child)
                if not self._should_run():
                    break
                if child is not None:
                    is_healthy = time.monotonic() - began > _HEALTHY_SECONDS
                    failures = 0 if is_healthy else failures + 1
                    delay = backoff_delay(
                        failures, _FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS
                    )
                    _log.warning("controller exited with %s; restart in %.1f s", exit_code, delay)
                    self._record_restart(is_healthy=is_healthy)
                    time.sleep(delay)
                began = time.monotonic()
                child = self._fork(lock)
        signal.setitimer(signal.ITIMER_REAL, 0)  # while the interpreter exits, it would be fatal
        _log.info("the config was removed; supervisor exits")

    def _record_restart(self, *, is_healthy: bool) -> None:
        """Record the restarts of the last minute, for `shoal status`."""
        now = time.time()
        recent = [at for at in self._restarts if now - at < RESTART_WINDOW_SECONDS]
        self._restarts = [] if is_healthy else [*recent, now]
        with suppress_and_log(_log, f"write {RESTARTS}", OSError):
            text = "".join(f"{at:.0f}\n" for at in self._restarts)
            write_atomically(self._directory / RESTARTS, text)

    def _fork(self, lock: FileLock) -> int:
        """Fork a controller, which holds the lock from its first moment on."""
        child = os.fork()
        if child:
            return child
        # Otherwise the child would keep the supervisor's lock after the supervisor's death.
        self._own_lock.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        exit_code = 1
        try:
            lock.write_owner()
            self._control()
            exit_code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with suppress_and_log(_log, "flush the output", OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(exit_code)

    def _should_run(self) -> bool:
        return controller_config.should_run(self._directory)


def rotate_log(path: Path) -> None:
    """Move a log that has grown large to a second file, which replaces the previous one. The log is
    truncated in place, because running processes append to it."""
    with suppress_and_log(_log, f"rotate {path}", OSError):
        if path.stat().st_size > MAX_LOG_BYTES:
            with suppress_and_log(_log, f"copy {path}", OSError):  # the disk may be full
                shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            os.truncate(path, 0)


def _wait_for_exit(child: int | None) -> int | None:
    """The exit code of a child that has ended."""
    return None if child is None else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
