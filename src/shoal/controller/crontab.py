"""Starts the controller again after a reboot of the head, or when the controller and its supervisor
were killed together. Two lines in the user's crontab do it: the one way that needs neither root nor
a particular init system. Without cron, `shoal up` starts the controller.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from shoal.controller.paths import CONFIG, RESTART_SCRIPT, SUPERVISOR_LOCK
from shoal.remote.scripts import read_script

_log = logging.getLogger(__name__)

# Variables that a controller needs and cron does not set.
_ENVIRONMENT = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"),
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"),
    *("RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"),
)
_TIMEOUT_SECONDS = 10.0

# At once after a reboot, and within a minute in all other cases.
_SCHEDULES = ("@reboot", "* * * * *")


def enable(directory: Path) -> None:
    """Have cron start the controller of this directory whenever it should run and does not."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    args = [
        str(directory / CONFIG),
        str(directory / SUPERVISOR_LOCK),
        *(sys.executable, "-m", "shoal.controller", "start", str(directory)),
    ]
    body = read_script("shoal.controller.scripts", "start_if_stopped.sh")
    script = directory / RESTART_SCRIPT
    script.write_text("\n".join(["#!/bin/sh", *exports, f"set -- {shlex.join(args)}", body]))
    script.chmod(0o700)
    _write_crontab([*_other_lines(directory), *_lines(directory, script)])


def disable(directory: Path) -> None:
    """Remove the lines and the script that `enable` made."""
    (directory / RESTART_SCRIPT).unlink(missing_ok=True)
    if _marker(directory) in "\n".join(_read_crontab()):
        _write_crontab(_other_lines(directory))


def _lines(directory: Path, script: Path) -> list[str]:
    # The lines do nothing if the directory is removed without them. Programs may not be executable
    # in a home directory. In a crontab, an unescaped percent sign ends the command.
    path = shlex.quote(str(script))
    command = f"[ ! -e {path} ] || sh {path}".replace("%", r"\%")
    return [f"{schedule} {command} {_marker(directory)}" for schedule in _SCHEDULES]


def _marker(directory: Path) -> str:
    return f"# shoal, {directory}"


def _other_lines(directory: Path) -> list[str]:
    return [line for line in _read_crontab() if not line.endswith(_marker(directory))]


def _read_crontab() -> list[str]:
    if shutil.which("crontab") is None:
        return []
    done = subprocess.run(
        ["crontab", "-l"], capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
    )
    return done.stdout.splitlines() if done.returncode == 0 else []


def _write_crontab(lines: list[str]) -> None:
    """Replace the crontab, or remove it when it would be empty. A user without the right to have
    one keeps none."""
    if shutil.which("crontab") is None:
        _log.info("no crontab on this machine: a reboot needs `shoal up`")
        return
    text = "".join(f"{line}\n" for line in lines)
    argv = ["crontab", "-"] if lines else ["crontab", "-r"]
    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
    )
    if done.returncode != 0:
        _log.info("could not write the crontab: %s", done.stderr.strip())
