"""The lines in a crontab that bring a controller back."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.controller import crontab
from shoal.controller.paths import CONFIG, SUPERVISOR_LOCK
from shoal.core.file_lock import FileLock

# A crontab in a file, which behaves as the real one does when there is none.
CRONTAB = """#!/bin/sh
case $1 in
-l) exec cat {table} ;;
-r) rm {table} ;;
-) cat > {table} ;;
esac
"""


@dataclass(frozen=True)
class Head:
    """A head with a crontab. What is started instead of a controller leaves `started` behind."""

    directory: Path
    table: Path
    started: Path

    def lines(self) -> list[str]:
        return self.table.read_text().splitlines() if self.table.exists() else []

    def minute(self) -> None:
        """Do what cron does every minute."""
        for line in self.lines():
            if line.startswith("* * * * * "):
                # To cron, a percent sign that is not escaped ends the command.
                command = line[len("* * * * * ") :].replace(r"\%", "%")
                subprocess.run(["sh", "-c", command], check=True)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    head = Head(tmp_path / "a 100% odd place", tmp_path / "table", tmp_path / "started")
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


def test_it_is_started_when_it_should_run_and_does_not(head: Head) -> None:
    (head.directory / CONFIG).touch()
    crontab.enable(head.directory)
    head.minute()
    assert head.started.read_text() == f"-m shoal.controller start {head.directory}\n"


def test_nothing_is_started_beside_a_supervisor_that_lives(head: Head) -> None:
    (head.directory / CONFIG).touch()
    crontab.enable(head.directory)
    with FileLock(head.directory / SUPERVISOR_LOCK) as lock:
        assert lock.try_acquire()
        head.minute()
    assert not head.started.exists()


def test_nothing_is_started_for_a_cluster_that_was_given_back(head: Head) -> None:
    crontab.enable(head.directory)
    head.minute()
    assert not head.started.exists()


def test_there_is_one_pair_of_lines_however_often_it_is_asked_for_and_then_none(head: Head) -> None:
    own = "0 4 * * * backup"
    head.table.write_text(f"{own}\n")
    for _ in range(2):
        crontab.enable(head.directory)
    first, reboot, minute = head.lines()
    assert (first, reboot.split()[0], minute.split()[0]) == (own, "@reboot", "*")
    crontab.disable(head.directory)
    assert head.lines() == [own]
    assert list(head.directory.iterdir()) == []
