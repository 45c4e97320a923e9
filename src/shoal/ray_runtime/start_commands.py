"""Adapts the start commands of a cluster file to a cluster that Shoal manages.

They are the user's shell text and stay so; only options are changed that would start a second
autoscaler, expose the dashboard or hide the node's address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

DEFAULT_GCS_PORT = 6379

# Shell text that names the interpreter of the `ray` on the PATH.
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
    """The GCS port in the head's start commands."""
    for command in head_start_commands:
        if _START.search(command) and (port := _PORT.search(command)):
            return int(port.group(1))
    return DEFAULT_GCS_PORT


def is_ray_stop(command: str) -> bool:
    """Whether the command is only a `ray stop`, which can be skipped where Ray does not run."""
    return _STOP.fullmatch(command) is not None


def adapt_start_command(command: str, address: str) -> str:
    """A start command as it runs on the node with this address."""
    if not _START.search(command):
        return command
    command = _AUTOSCALING.sub("", command)
    command = _DASHBOARD_HOST.sub("--dashboard-host=127.0.0.1", command)
    options = []
    if _HEAD.search(command) and "--no-monitor" not in command:
        options.append("--no-monitor")
    if "--node-ip-address" not in command and _is_ip_address(address):
        options.append(f"--node-ip-address={address}")
    if "usage-stats" not in command:
        options.append("--disable-usage-stats")
    return _START.sub(" ".join(["ray start", *options]), command, count=1)


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
