"""Brings the controller back when its head has been rebooted, by a line in the user's own crontab:
the one way that needs neither root nor a certain init system. A machine without cron is left as
it is; there `shoal up` does it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_SCRIPT = "at-boot"
# What of this environment a controller needs, and cron does not give.
_KEPT = ("PATH", "PYTHONPATH", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
_SECONDS = 10.0


def enable(directory: Path) -> None:
    """Have the controller of this directory started at every boot."""
    words = [sys.executable, "-m", "shoal.controller", "start", str(directory)]
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    script = directory / _SCRIPT
    script.write_text("\n".join(["#!/bin/sh", *exports, f"exec {shlex.join(words)}", ""]))
    script.chmod(0o700)
    # Should the directory ever be removed without this line, the line does nothing.
    path = shlex.quote(str(script))
    _write_crontab([*_others(directory), f"@reboot [ ! -x {path} ] || {path} {_mark(directory)}"])


def disable(directory: Path) -> None:
    """Leave nothing of it."""
    (directory / _SCRIPT).unlink(missing_ok=True)
    if _mark(directory) in "\n".join(_crontab()):
        _write_crontab(_others(directory))


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
