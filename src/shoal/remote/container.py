"""Containers on a host: how to run a command in one, and how to find and remove a cluster's.

A container that Shoal creates has the cluster's name and a hash of its configuration as labels,
and a file on the host says that there may be one. So a later command finds the containers of an
interrupted one, even if the cluster's file has changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.remote.scripts import read_script, script_command

CLUSTER_LABEL = "shoal.cluster"
CONTAINER_HASH_LABEL = "shoal.container-hash"

# Shell text that names a file with the name of the container runtime; it is written before a
# container is created. A dotfile may have changed the directory.
RUNTIME_FILE = '"$HOME/.shoal/container"'

_SCRIPTS = "shoal.remote.scripts"


@dataclass(frozen=True)
class Container:
    """A container on a host: the command of its runtime, docker or podman, and its name."""

    runtime: str
    name: str

    def exec_argv(self, *, tty: bool = False) -> list[str]:
        """The arguments before a command that is to run inside, as the user of the image."""
        options = ["-it", "-e", "TERM"] if tty else ["-i"]
        return [self.runtime, "exec", *options, self.name]

    def __str__(self) -> str:
        return f"container {self.name}"


def exec_in_containers(cluster: str, argv: Sequence[str]) -> str:
    """A command for the host that runs `argv` in every running container of the cluster there."""
    return script_command(_SCRIPTS, "exec_in_containers.sh", cluster, *argv)


def remove_containers(cluster: str) -> str:
    """A command for the host that removes every container of the cluster there. Images stay."""
    return script_command(_SCRIPTS, "remove_containers.sh", cluster)


def remove_containers_script() -> str:
    """The script that `remove_containers` runs, for other scripts. It takes the cluster as $1."""
    return read_script(_SCRIPTS, "remove_containers.sh")
