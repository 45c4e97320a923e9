"""Claims: the owner of a host, written on the host itself, where every cluster that may want the
host reads it. This module only describes and reads claims; `bootstrap.claims` makes and removes
them.

A claim is one line in a file that all users of the host can read.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.core.errors import ClaimedError

CLAIM_FILE = "/var/tmp/shoal-owner"

# A claim that exists and cannot be read still has an owner.
READ_COMMAND = f"[ ! -e {CLAIM_FILE} ] || cat {CLAIM_FILE} 2>/dev/null || echo '? ?'"


@dataclass(frozen=True)
class Claim:
    """The owner, which is a cluster's name and its head's address, and the node's name in that
    cluster. The node's processes carry `id` in their environment."""

    owner: str
    node: str
    id: str = ""

    def __str__(self) -> str:
        return f"{self.owner} {self.node} {self.id}"


def owner_name(cluster: str, head_address: str) -> str:
    """How a cluster signs its claims."""
    return f"{cluster}@{head_address}"


def parse(line: str) -> Claim | None:
    """The claim on a line that `READ_COMMAND` printed; None if the host is free."""
    owner, node, id, *_ = [*line.split(), "", "", ""]
    return Claim(owner, node, id) if owner and node else None


def claimed_error(owner: str, node: str) -> ClaimedError:
    """The error for a host that belongs to another cluster."""
    return ClaimedError(
        f"the host belongs to {owner}",
        why="a host can be part of only one cluster",
        fix="run shoal down on that cluster\nor take its host: shoal up CLUSTER --force",
        node=node,
    )
