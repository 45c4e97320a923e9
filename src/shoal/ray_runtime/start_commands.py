"""Makes the start commands of a cluster file fit a cluster that Shoal runs.

They are the user's shell text and stay so; only what would start a second autoscaler, open the
dashboard to the world or hide the node's address is changed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

DEFAULT_GCS_PORT = 6379

# Shell text that names the interpreter behind the `ray` on the PATH.
RAY_PYTHON = (
    '"$(python=$(sed -n "1s/^#! *//p" "$(command -v ray)" 2>/dev/null); '
    'case $python in *python*) echo "$python";; *) echo python3;; esac)"'
)

_START = re.compile(r"\bray\s+start\b")
_STOP = re.compile(r"\s*ray\s+stop(\s+(-f|--force))?\s*")
_VALUE = r"""(?:=|\s+)(?:"[^"]*"|'[^']*'|[^\s;&|'"]+)"""
_AUTOSCALING = re.compile(rf"\s--autoscaling-config{_VALUE}")
_DASHBOARD_HOST = re.compile(rf"--dashboard-host{_VALUE}")
_PORT = re.compile(r"--port(?:=|\s+)(\d+)")
_HEAD = re.compile(r"--head\b")


def gcs_port(head_start_commands: Sequence[str]) -> int:
    """The port that the head's start commands give the GCS."""
    for command in head_start_commands:
        if _START.search(command) and (port := _PORT.search(command)):
            return int(port.group(1))
    return DEFAULT_GCS_PORT


def is_plain_stop(command: str) -> bool:
    """Whether this is nothing but a `ray stop`, which a machine without Ray can do without."""
    return _STOP.fullmatch(command) is not None


def fitted(command: str, address: str) -> str:
    """A start command as it is run on the node with this address."""
    if not _START.search(command):
        return command
    command = _AUTOSCALING.sub("", command)
    command = _DASHBOARD_HOST.sub("--dashboard-host=127.0.0.1", command)
    extra = []
    if _HEAD.search(command) and "--no-monitor" not in command:
        extra.append("--no-monitor")
    if "--node-ip-address" not in command and _is_address(address):
        extra.append(f"--node-ip-address={address}")
    if "usage-stats" not in command:
        extra.append("--disable-usage-stats")
    return _START.sub(" ".join(["ray start", *extra]), command, count=1)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
