"""The supervisor keeps exactly one controller running, and stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.bootstrap.containers.registry_login import PASSWORD_VARIABLE
from shoal.controller import heartbeat, supervisor
from shoal.controller.__main__ import main
from shoal.controller.paths import (
    CONFIG,
    CONTROLLER_LOCK,
    HEARTBEAT,
    LOG,
    PREPARED_CONFIG,
    RESTARTS,
    SUPERVISOR_LOCK,
)
from shoal.core.file_lock import FileLock, lock_owner
from tests.polling import alive, until

pytestmark = pytest.mark.processes

# A supervisor whose controllers only write their heartbeat, and ignore SIGTERM if so asked. One
# without a heartbeat for three seconds is stalled.
PROGRAM = """
import signal, sys, time
from pathlib import Path
from shoal.core.file_lock import FileLock, lock_owner
from shoal.controller import heartbeat, paths, supervisor

heartbeat.CHECK_SECONDS, heartbeat.MAX_MISSED = 0.1, 30

def control():
    if "ignore-sigterm" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.05)
        Path(sys.argv[1], paths.HEARTBEAT).touch()

supervisor.supervise(Path(sys.argv[1]), lambda: None, control)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / CONFIG).touch()
    yield tmp_path
    supervisor.stop(tmp_path)


def start(directory: Path, *options: str, program: str = PROGRAM) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, str(directory), *options])


def holder(directory: Path, lock: str) -> int:
    """The process that holds a lock; 0 if it is free."""
    return lock_owner(directory / lock) or 0


async def test_a_killed_controller_is_restarted_once(directory: Path) -> None:
    process = start(directory)
    await until(lambda: holder(directory, CONTROLLER_LOCK) > 0, "a controller runs")
    first = holder(directory, CONTROLLER_LOCK)
    second_supervisor = start(directory)
    assert second_supervisor.wait(timeout=60) == 0, "a second supervisor exits"
    os.kill(first, signal.SIGKILL)
    await until(lambda: holder(directory, CONTROLLER_LOCK) not in (0, first), "another runs")
    assert not alive(first)
    assert holder(directory, SUPERVISOR_LOCK) == process.pid


async def test_a_stalled_controller_is_replaced_and_a_running_one_is_not(
    directory: Path,
) -> None:
    start(directory)
    await until(lambda: holder(directory, CONTROLLER_LOCK) > 0, "a controller runs")
    first = holder(directory, CONTROLLER_LOCK)
    await until((directory / HEARTBEAT).exists, "it has a heartbeat")
    watchdog = heartbeat.Watchdog(directory)
    for _ in range(3 * heartbeat.MAX_MISSED):
        watchdog.check()
        seen = (directory / HEARTBEAT).stat().st_mtime_ns
        await until(lambda seen=seen: (directory / HEARTBEAT).stat().st_mtime_ns > seen)  # type: ignore[misc]
    assert holder(directory, CONTROLLER_LOCK) == first
    os.kill(first, signal.SIGSTOP)
    await until(lambda: holder(directory, CONTROLLER_LOCK) not in (0, first), "another runs")
    assert not alive(first)


async def test_a_new_supervisor_adopts_the_running_controller(directory: Path) -> None:
    process = start(directory)
    await until(lambda: holder(directory, CONTROLLER_LOCK) > 0, "a controller runs")
    controller = holder(directory, CONTROLLER_LOCK)
    process.kill()
    process.wait()
    assert holder(directory, SUPERVISOR_LOCK) == 0, "its child does not hold its lock"
    new = start(directory)
    await until(lambda: holder(directory, SUPERVISOR_LOCK) == new.pid, "the new supervisor runs")
    assert holder(directory, CONTROLLER_LOCK) == controller
    os.kill(controller, signal.SIGKILL)
    await until(lambda: holder(directory, CONTROLLER_LOCK) not in (0, controller), "another runs")


async def test_a_start_beside_a_running_supervisor_starts_no_other(directory: Path) -> None:
    start(directory)
    await until(lambda: holder(directory, SUPERVISOR_LOCK) > 0, "a supervisor runs")
    assert not supervisor.start(directory)
    assert not (directory / LOG).exists(), "no process was started"


async def test_a_supervisor_starts_while_others_test_its_lock(directory: Path) -> None:
    with FileLock(directory / SUPERVISOR_LOCK) as lock:
        assert lock.try_acquire()
        process = start(directory)
        opened = psutil.Process(process.pid).open_files
        await until(lambda: any(f.path.endswith(SUPERVISOR_LOCK) for f in opened()), "it tries")
    await until(lambda: holder(directory, SUPERVISOR_LOCK) == process.pid, "it runs")


async def test_a_supervisor_that_was_about_to_exit_sees_a_new_config(directory: Path) -> None:
    """The config is removed, and there again when the supervisor releases its lock."""
    program = PROGRAM.replace(
        "supervisor.supervise(",
        "\n".join(
            [
                "class Late(supervisor._Supervisor):",
                "    def run(self):",
                "        super().run()",
                "        Path(sys.argv[1], paths.CONFIG).touch()",
                "supervisor._Supervisor = Late",
                "supervisor.supervise(",
            ]
        ),
    )
    start(directory, program=program)
    await until(lambda: alive(holder(directory, CONTROLLER_LOCK)), "a controller runs")
    first = holder(directory, CONTROLLER_LOCK)
    (directory / CONFIG).unlink()
    os.kill(first, signal.SIGKILL)
    await until(lambda: holder(directory, CONTROLLER_LOCK) not in (0, first), "another runs")
    assert (directory / CONFIG).exists()


async def test_a_process_that_ignores_sigterm_is_killed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_TERM_SECONDS", 0.3)
    start(directory, "ignore-sigterm")
    await until(lambda: holder(directory, CONTROLLER_LOCK) > 0, "a controller runs")
    controller = holder(directory, CONTROLLER_LOCK)
    supervisor.stop(directory)
    assert not alive(controller)
    assert holder(directory, SUPERVISOR_LOCK) == 0


async def test_waiting_for_a_process_that_cannot_be_killed_has_a_deadline(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(directory)
    await until(lambda: holder(directory, CONTROLLER_LOCK) > 0, "a controller runs")
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "_TERM_SECONDS", 0.1)
        patch.setattr(supervisor, "_KILL_SECONDS", 0.1)
        patch.setattr(os, "kill", lambda pid, sign: None)
        with pytest.raises(SystemExit, match="could not kill"):
            supervisor.stop(directory)


async def test_a_new_password_restarts_the_supervisor(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(directory)
    await until(lambda: holder(directory, CONTROLLER_LOCK) > 0, "a controller runs")
    monkeypatch.setenv(PASSWORD_VARIABLE, "a secret")
    main(["start", str(directory), "--secret", PASSWORD_VARIABLE])
    await until(lambda: holder(directory, SUPERVISOR_LOCK) not in (0, first.pid), "another runs")
    second = holder(directory, SUPERVISOR_LOCK)
    first.wait(timeout=20)
    main(["start", str(directory), "--secret", PASSWORD_VARIABLE])
    monkeypatch.delenv(PASSWORD_VARIABLE)
    main(["start", str(directory)])
    assert holder(directory, SUPERVISOR_LOCK) == second, "a supervisor that has it stays"


def test_a_large_log_is_rotated_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 10)
    log = tmp_path / "controller.log"
    with log.open("a") as writer:
        print("first", file=writer, flush=True)
        supervisor.rotate_log(log)
        assert log.read_text() == "first\n"
        print("second", file=writer, flush=True)
        supervisor.rotate_log(log)
        print("third", file=writer, flush=True)
    assert log.read_text() == "third\n"
    assert (tmp_path / "controller.log.1").read_text() == "first\nsecond\n"


async def test_a_prepared_controller_starts_before_there_is_a_config(directory: Path) -> None:
    (directory / CONFIG).rename(directory / PREPARED_CONFIG)
    start(directory)
    await until(lambda: holder(directory, CONTROLLER_LOCK), "the controller runs")
    supervisor.stop(directory)
    assert not (directory / PREPARED_CONFIG).exists()


async def test_a_controller_that_was_prepared_long_ago_is_not_started(directory: Path) -> None:
    (directory / CONFIG).rename(directory / PREPARED_CONFIG)
    os.utime(directory / PREPARED_CONFIG, (0, 0))
    assert start(directory).wait(30) == 0
    assert not holder(directory, CONTROLLER_LOCK)


async def test_a_supervisor_without_a_config_exits(directory: Path) -> None:
    (directory / CONFIG).unlink()
    assert start(directory).wait(30) == 0


async def test_restarts_of_a_controller_that_dies_at_once_are_recorded(directory: Path) -> None:
    start(directory)
    restarts = directory / RESTARTS
    for count in (1, 2):
        # The supervisor holds the lock between two controllers.
        await until(lambda: alive(holder(directory, CONTROLLER_LOCK)), "a controller runs")
        os.kill(holder(directory, CONTROLLER_LOCK), signal.SIGKILL)

        def is_recorded(count: int = count) -> bool:
            return restarts.exists() and len(restarts.read_text().split()) == count

        await until(is_recorded, "its restart is recorded")
