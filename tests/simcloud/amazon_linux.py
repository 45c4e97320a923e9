"""A disk that differs from the computer's own as Amazon Linux 2023 differs from Ubuntu: no apt, a
Python 3.9 as python3, and newer ones only after `dnf install`."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tests.simcloud.disk_images import System

IMAGE = "ami-0a1b2c3d4e5f62023"
SYSTEM = System(user="ec2-user", has_ray=False)
_HIDDEN = ("apt", "apt-get", "apt-cache", "dpkg", "add-apt-repository", "python3", "python3.11")
_PYTHON = "/usr/libexec/packages/python3.11"
# The same interpreter, which calls itself older.
_OLD_PYTHON = f"""#!/bin/sh
PYTHONPATH=/usr/libexec/python3.9:$PYTHONPATH exec {_PYTHON} "$@"
"""
_OLD_VERSION = """
import sys
sys.version_info = type("version_info", (tuple,), dict(
    zip(("major", "minor", "micro", "releaselevel", "serial"), (3, 9, 20, "final", 0))
))((3, 9, 20, "final", 0))
sys.version = "3.9.20 (main)"
"""
_DNF = f"""#!/bin/sh
# Stands in for dnf, whose repositories have Python 3.11.
[ "$(id -u)" = 0 ] || {{ echo "Error: needs superuser privileges" >&2; exit 1; }}
for word in "$@"; do
    [ "$word" != python3.11 ] || exec cp {_PYTHON} /usr/bin/python3.11
done
"""


def build(directory: Path) -> Path:
    """Make the disk in an empty directory, and return it."""
    programs, packages = directory / "usr/bin", directory / "usr/libexec/packages"
    python = directory / "usr/libexec/python3.9"
    for path in (programs, packages, python):
        path.mkdir(parents=True)
    for name in _HIDDEN:
        if Path("/usr/bin", name).exists():
            # What an overlay shows as deleted.
            os.mknod(programs / name, stat.S_IFCHR, os.makedev(0, 0))
    shutil.copy("/usr/bin/python3.11", packages / "python3.11")
    (python / "sitecustomize.py").write_text(_OLD_VERSION)
    (programs / "python3").unlink()
    for name, text in {"python3": _OLD_PYTHON, "dnf": _DNF}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (directory / "etc").mkdir()
    (directory / "etc/os-release").write_text('NAME="Amazon Linux"\nVERSION="2023"\nID="amzn"\n')
    return directory
