"""Whose a machine is, written on the machine itself, where every cluster that may want it looks.

A claim is one line in a file that all users of the machine can read. It is made in one step, so
two clusters that want a machine at the same moment cannot both get it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.providers.base import TAKEN
from shoal.remote.base import quote

PATH = "/var/tmp/shoal-owner"

READ = f"cat {PATH} 2>/dev/null || true"

# $0 is the claim, $1 whose it must be, $2 says whether to take it from another cluster.
_CLAIM = rf"""
set -e
new={PATH}.$$
printf '%s\n' "$0" > "$new"
trap 'rm -f "$new"' EXIT
if [ "$2" = force ]; then mv -f "$new" {PATH}; exit 0; fi
ln "$new" {PATH} 2>/dev/null && exit 0
read -r owner name < {PATH}
if [ "$owner" = "$1" ]; then mv -f "$new" {PATH}; exit 0; fi
echo "$owner"
exit {TAKEN}
"""

# $0 is whose it must be.
_IS_OWNED = rf'read -r owner name < {PATH} && [ "$owner" = "$0" ]'
_RELEASE = rf"""
{_IS_OWNED} && rm -f {PATH}
true
"""


@dataclass(frozen=True)
class Claim:
    """A cluster, told from others of the same name by its head, and the node's name in it."""

    owner: str
    node: str

    def __str__(self) -> str:
        return f"{self.owner} {self.node}"


def owner(cluster: str, head_address: str) -> str:
    return f"{cluster}@{head_address}"


def claim_command(claim: Claim, *, force: bool) -> str:
    """A command that makes the machine this cluster's, or prints whose it is."""
    how = "force" if force else "ask"
    return quote(["sh", "-c", _CLAIM, str(claim), claim.owner, how])


def check_command(owner: str) -> str:
    """A command that fails unless the machine is this cluster's."""
    return quote(["sh", "-c", _IS_OWNED, owner])


def release_command(owner: str) -> str:
    """A command that gives the machine up, if it is this cluster's."""
    return quote(["sh", "-c", _RELEASE, owner])


def parse(line: str) -> Claim | None:
    owner, _, node = line.strip().partition(" ")
    return Claim(owner, node) if owner and node else None
