"""Brings the controller back where nothing of it is left to do so: when its head was rebooted, or
when it and its supervisor were killed at once. Two lines in the user's own crontab see to it: the
one way that needs neither root nor a certain init system. A machine without cron is left as it
is; there `shoal up` does it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from shoal.controller.paths import HANDOVER, SUPERVISOR_LOCK

_SCRIPT = "bring-back"
# What of this environment a controller needs, and cron does not give.
_KEPT = ("PATH", "PYTHONPATH", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
_SECONDS = 10.0

# The first for a rebooted head at once; the second for all else, within a minute.
_TIMES = ("@reboot", "* * * * *")

# Where a supervisor lives this ends before any Python is loaded, so that a run every minute costs
# nothing worth counting.
_LOOK = """\
[ -e {handover} ] || exit 0
! command -v flock > /dev/null || flock --nonblock {lock} true || exit 0
exec {start}
"""


def enable(directory: Path) -> None:
    """Have the controller of this directory started whenever it should run and does not."""
    start = [sys.executable, "-m", "shoal.controller", "start", str(directory)]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    look = _LOOK.format(
        handover=shlex.quote(str(directory / HANDOVER)),
        lock=shlex.quote(str(directory / SUPERVISOR_LOCK)),
        start=shlex.join(start),
    )
    script = directory / _SCRIPT
    script.write_text("\n".join(["#!/bin/sh", *exports, look]))
    script.chmod(0o700)
    _write_crontab([*_others(directory), *_lines(directory, script)])


def disable(directory: Path) -> None:
    """Leave nothing of it."""
    (directory / _SCRIPT).unlink(missing_ok=True)
    if _mark(directory) in "\n".join(_crontab()):
        _write_crontab(_others(directory))


def _lines(directory: Path, script: Path) -> list[str]:
    # Should the directory ever be removed without these lines, they do nothing. To cron a percent
    # sign is the end of the command.
    path = shlex.quote(str(script))
    command = f"[ ! -x {path} ] || {path}".replace("%", r"\%")
    return [f"{time} {command} {_mark(directory)}" for time in _TIMES]


def _mark(directory: Path) -> str:
    return f"# shoal, {directory}"


def _others(directory: Path) -> list[str]:
    return [line for line in _crontab() if not line.endswith(_mark(directory))]


def _crontab() -> list[str]:
    if shutil.which("crontab") is None:
        return []
    done = subprocess.run(["crontab", "-l"], capture_output=True, text=True, timeout=_SECONDS)
    return done.stdout.splitlines() if done.returncode == 0 else []


def _write_crontab(lines: list[str]) -> None:
    """Replace the crontab, or remove one that is empty. A user who may have none has none."""
    if shutil.which("crontab") is not None:
        text = "".join(f"{line}\n" for line in lines)
        words = ["crontab", "-"] if lines else ["crontab", "-r"]
        subprocess.run(words, input=text, capture_output=True, text=True, timeout=_SECONDS)
