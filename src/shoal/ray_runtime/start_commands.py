"""Adapts the start commands of a cluster file to a cluster that Shoal manages.

They are the user's shell text and stay so; only options are changed that would start a second
autoscaler, expose the dashboard, hide the node's address, or have another name now.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

DEFAULT_GCS_PORT = 6379

# `ray start`, also as a module, with a quoted path, or with a line break before `start`.
_START = re.compile(r"""\bray(?:\.scripts\.scripts)?["']?(?:\s|\\\n)+start\b""")
_VALUE = r"""(?:=|\s+)(?:"[^"]*"|'[^']*'|[^\s;&|'"]+)"""
_AUTOSCALING = re.compile(rf"\s--autoscaling-config{_VALUE}")
_DASHBOARD_HOST = re.compile(rf"--dashboard-host{_VALUE}")
# Their names until 2020, when Redis kept the cluster's state.
_OLD_OPTIONS = re.compile(r"--redis-(port|address)(?=[=\s])")
_PORT = re.compile(r"""--port(?:=|\s+)["']?(\d+)""")
_HEAD = re.compile(r"--head\b")

# Programs that run another one in its environment.
_DIRECTORY = r"""(?:[^\s;&|"'()<>]*/)?"""
_RUN = rf"(?:{_DIRECTORY}(?:uv|poetry|pipenv|pdm|hatch|rye)\s+run\s+|"
_RUN += rf"{_DIRECTORY}(?:conda|mamba|micromamba)\s+run"
_RUN += r"(?:\s+(?:-[np]|--name|--prefix)(?:\s+|=)[^\s;&|]+|\s+--?[\w-]+)*\s+)"
# A `ray stop` by itself, with what usually goes with it. The following are compiled when they are
# used: most commands start no Ray.
_STOP = rf"""(?:\w+=[^\s;&|]*\s+)*{_RUN}?{_DIRECTORY}ray\s+stop"""
_STOP += rf"(?:\s+(?:-f|--force|-v|--verbose|(?:-g|--grace-period){_VALUE}))*"
_STOP += r"(?:\s*\d?&?>{1,2}\s*&?[\w/]+)*(?:\s*\|\|\s*(?:true|:))?"
# The same as one of several commands. What is before it is not a program, such as sudo, of which it
# would be an argument.
_ONE_STOP = rf"((?:^|[;&|({{\n]|\b(?:then|else|do)\s)[^\S\n]*)(?:{_STOP})(?=\s*(?:[;&|)\n]|$))"
_LEADING_NOTHING = r"^\s*:\s*(?:;|&&|\n)\s*"
_SEPARATOR = r"&&|;|\n"
# Commands that only prepare the shell in which Ray starts.
_PREPARATION = (
    r"(?:(?:source|\.|pyenv|eval|export|module|cd)\s.*|\w+=\S*|true|:|)"
    r"|(?:conda|mamba|micromamba)\s+(?:de)?activate\b.*"
)
_ACTIVATE = re.compile(r"""(?:\bsource|(?:^|[\s;&])\.)\s+["']?([^\s;&|"']+)/activate\b""")
_PROGRAM = re.compile(r"""(?<![^\s"'=;&|(])([^\s"'=;&|()]+/ray)["']?(?:\s|\\\n)+start\b""")
_UV_RUN = re.compile(r"\buv\s+run\s")


def gcs_port(head_start_commands: Sequence[str]) -> int:
    """The GCS port in the head's start commands."""
    for command in head_start_commands:
        if _START.search(command) and (port := _PORT.search(_with_new_names(command))):
            return int(port.group(1))
    return DEFAULT_GCS_PORT


def ray_programs(commands: Sequence[str]) -> list[str]:
    """The paths of `ray` that these commands may run, as far as their text shows."""
    paths: list[str] = []
    for command in commands:
        if not _START.search(command):
            continue
        paths += _PROGRAM.findall(command)
        paths += [f"{directory}/ray" for directory in _ACTIVATE.findall(command)]
        if _UV_RUN.search(command):
            paths.append(".venv/bin/ray")
    return list(dict.fromkeys(paths))


def without_ray_stop(commands: Sequence[str]) -> list[str]:
    """The commands as they run on a node where no Ray runs: without `ray stop`, which takes
    seconds. In a command that does more than to stop Ray, `:` takes its place."""
    replaced = [re.sub(_ONE_STOP, r"\1:", c) for c in commands if not _is_ray_stop(c)]
    return [re.sub(_LEADING_NOTHING, "", c) for c in replaced]


def _is_ray_stop(command: str) -> bool:
    if _START.search(command):
        return False
    parts = [part.strip() for part in re.split(_SEPARATOR, command)]
    others = [part for part in parts if not re.fullmatch(_STOP, part)]
    return len(others) < len(parts) and all(re.fullmatch(_PREPARATION, part) for part in others)


def adapt_start_command(command: str, address: str) -> str:
    """A start command as it runs on the node with this address."""
    if not _START.search(command):
        return command
    command = _AUTOSCALING.sub("", _with_new_names(command))
    command = _DASHBOARD_HOST.sub("--dashboard-host=127.0.0.1", command)
    options = []
    if _HEAD.search(command) and "--no-monitor" not in command:
        options.append("--no-monitor")
    if "--node-ip-address" not in command and _is_ip_address(address):
        options.append(f"--node-ip-address={address}")
    if "usage-stats" not in command:
        options.append("--disable-usage-stats")
    return _START.sub(lambda start: " ".join([start.group(), *options]), command, count=1)


def _with_new_names(command: str) -> str:
    return _OLD_OPTIONS.sub(r"--\1", command)


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
