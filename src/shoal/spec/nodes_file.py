"""Nodes files: a text file with one host address per line, the head first, as an alternative to a
cluster file of provider type `local`. The SSH key and user come from the command line."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.addresses import normalized
from shoal.spec.problems import KeyPath, Problem, SpecError
from shoal.spec.yaml_document import Document
from shoal.spec.yaml_source import read

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")
_DIGITS_AND_DOTS = re.compile(r"[0-9.]+")


@dataclass(frozen=True)
class NodesFile:
    """A nodes file and the login of its hosts. Without a `key_file`, ssh's own configuration
    applies; without a `username`, the default user."""

    path: str
    key_file: str | None = None
    username: str | None = None


def parse(nodes: NodesFile) -> Document:
    """The equivalent cluster file. Raises `SpecError` if the file cannot be read, or has invalid
    addresses or none."""
    source = read(nodes.path)
    problems: list[Problem] = []
    lines: dict[KeyPath, int] = {}
    hosts: list[str] = []
    for number, line in enumerate(source.text.splitlines(), start=1):
        address = line.partition("#")[0].strip()
        if not address:
            continue
        if not _is_address(address):
            message = f"{address!r} is not an address; expected one address per line"
            problems.append(Problem(source.name, message, line=number))
            continue
        path: KeyPath = ("provider", "worker_ips", len(hosts) - 1)
        lines[path if hosts else ("provider", "head_ip")] = number
        hosts.append(address)
    if not hosts and not problems:
        problems.append(Problem(source.name, "contains no addresses"))
    if problems:
        raise SpecError(problems)
    data = {
        "cluster_name": _name(nodes.path),
        "provider": {"type": "local", "head_ip": hosts[0], "worker_ips": hosts[1:]},
        "auth": _auth(nodes),
    }
    return Document(source.name, data, lines)


def _is_address(text: str) -> bool:
    if _DIGITS_AND_DOTS.fullmatch(text) or ":" in text:
        try:
            ipaddress.ip_address(normalized(text))
        except ValueError:
            return False
        return True
    return _HOST_NAME.fullmatch(text) is not None


def _name(path: str) -> str:
    """The cluster's name: the name of the file, without invalid characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem)[:63].strip("-._") or "nodes"


def _auth(nodes: NodesFile) -> dict[str, Any]:
    auth: dict[str, Any] = {}
    if nodes.username is not None:
        auth["ssh_user"] = nodes.username
    if nodes.key_file is not None:
        # Absolute: later commands find the cluster by name, from any directory.
        key = Path(nodes.key_file).expanduser().absolute()
        if not key.is_file():
            raise SpecError([Problem("--key-file", f"{nodes.key_file}: no such file")])
        auth["ssh_private_key"] = str(key)
    return auth
