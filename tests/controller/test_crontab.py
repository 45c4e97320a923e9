"""The crontab lines that restart a controller."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.controller import crontab
from shoal.controller.paths import CONFIG, RESTART_SCRIPT, SUPERVISOR_LOCK
from shoal.core.file_lock import FileLock

# A crontab command that keeps its table in a file, and fails without one as the real one does.
CRONTAB = """#!/bin/sh
case $1 in
-l) exec cat {table} ;;
-r) rm {table} ;;
-) cat > {table} ;;
esac
"""


@dataclass(frozen=True)
class Head:
    """A head with a crontab. Its Python only writes its arguments to `started`."""

    directory: Path
    table: Path
    started: Path

    def lines(self) -> list[str]:
        return self.table.read_text().splitlines() if self.table.exists() else []

    def minute(self) -> None:
        """Run what cron runs every minute."""
        for line in self.lines():
            if line.startswith("* * * * * "):
                # In a crontab, an unescaped percent sign ends the command.
                command = line[len("* * * * * ") :].replace(r"\%", "%")
                subprocess.run(["sh", "-c", command], check=True)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    head = Head(tmp_path / "a 100% unusual path", tmp_path / "table", tmp_path / "started")
    head.directory.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "crontab": CRONTAB.format(table=head.table),
        "python": f'#!/bin/sh\necho "$@" > {head.started}\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    return head


def test_a_controller_that_does_not_run_is_started(head: Head) -> None:
    (head.directory / CONFIG).touch()
    crontab.enable(head.directory)
    head.minute()
    assert head.started.read_text() == f"-m shoal.controller start {head.directory}\n"


def test_it_is_started_where_programs_in_the_home_directory_are_not_executable(head: Head) -> None:
    (head.directory / CONFIG).touch()
    crontab.enable(head.directory)
    (head.directory / RESTART_SCRIPT).chmod(0o600)
    head.minute()
    assert head.started.exists()


def test_nothing_is_started_while_a_supervisor_runs(head: Head) -> None:
    (head.directory / CONFIG).touch()
    crontab.enable(head.directory)
    with FileLock(head.directory / SUPERVISOR_LOCK) as lock:
        assert lock.try_acquire()
        head.minute()
    assert not head.started.exists()


def test_nothing_is_started_without_a_config(head: Head) -> None:
    crontab.enable(head.directory)
    head.minute()
    assert not head.started.exists()


def test_enabling_twice_adds_one_pair_of_lines_and_disabling_removes_it(head: Head) -> None:
    other = "0 4 * * * backup"
    head.table.write_text(f"{other}\n")
    for _ in range(2):
        crontab.enable(head.directory)
    first, reboot, minute = head.lines()
    assert (first, reboot.split()[0], minute.split()[0]) == (other, "@reboot", "*")
    crontab.disable(head.directory)
    assert head.lines() == [other]
    assert list(head.directory.iterdir()) == []
