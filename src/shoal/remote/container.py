"""Containers on a machine: how to get into one, and how to find and remove a cluster's.

A container of ours carries the name of its cluster and a digest of what it was made from as
labels, and a file on the machine says that there may be one. So whoever comes after a crash
finds it, whatever the cluster's file says by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.remote.runner import quote

CLUSTER_LABEL = "shoal.cluster"
CONTAINER_HASH_LABEL = "shoal.container-hash"

# Holds the name of the engine that was asked for a container; written before it is asked.
RUNTIME_FILE = ".shoal/container"


@dataclass(frozen=True)
class Container:
    """A container on a machine, by its engine's command and its name."""

    runtime: str
    name: str

    def exec_argv(self, *, tty: bool = False) -> list[str]:
        """The words before a command that is to run inside, as the image's own user."""
        how = ["-it", "-e", "TERM"] if tty else ["-i"]
        return [self.runtime, "exec", *how, self.name]

    def __str__(self) -> str:
        return f"container {self.name}"


# $0 is the cluster, the rest a command to run inside. A machine that never had a container of
# ours is not asked for one; one whose engine does not answer is, and says why it cannot.
_IN_EACH = rf"""
[ -s {RUNTIME_FILE} ] || exit 0
engine=$(cat {RUNTIME_FILE})
ids=$("$engine" ps -q --filter "label={CLUSTER_LABEL}=$0") || exit 1
for id in $ids; do "$engine" exec "$id" "$@" || exit 1; done
"""

# $0 is the cluster.
REMOVE = rf"""
[ -s {RUNTIME_FILE} ] || exit 0
engine=$(cat {RUNTIME_FILE})
ids=$("$engine" ps -aq --filter "label={CLUSTER_LABEL}=$0") || exit 1
[ -z "$ids" ] || "$engine" rm -f $ids >/dev/null || exit 1
rm -f {RUNTIME_FILE}
"""


def exec_in_containers(cluster: str, argv: Sequence[str]) -> str:
    """A command for the machine that runs `argv` in every container of the cluster there."""
    return quote(["sh", "-c", _IN_EACH, cluster, *argv])


def remove_containers(cluster: str) -> str:
    """A command for the machine that removes every container of the cluster there. Images
    stay."""
    return quote(["sh", "-c", REMOVE, cluster])
