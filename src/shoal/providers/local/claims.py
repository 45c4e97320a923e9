"""Whose a machine is, written on the machine itself, where every cluster that may want it looks.

A claim is one line in a file that all users of the machine can read. It is made in one step, so
two clusters that want a machine at the same moment cannot both get it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.providers.protocol import EXIT_CLAIMED, EXIT_OWNED_BY_OTHER_USER
from shoal.ray_runtime import ray_stop
from shoal.remote import container
from shoal.remote.runner import quote

PATH = "/var/tmp/shoal-owner"

# One that is there and cannot be read is somebody's.
READ = f"[ ! -e {PATH} ] || cat {PATH} 2>/dev/null || echo '? ?'"

# Ends all that a cluster runs on the machine, and takes away what it has there: its processes, its
# containers, its controller if this was its head, and at last its files. But a worker whose home is
# that of its head as well has no files of its own. $owner, $node and $id are those of the claim.
_EVICT = r"""
evict() {
  sh -c "$STOP" "RAY_CLOUD_INSTANCE_ID=$id" && sh -c "$REMOVE" "${owner%@*}" || return
  [ "$node" = head ] || [ ! -e .shoal/cluster_key ] || return 0
  rm -f .shoal/controller/handover.json .shoal/controller/bring-back
  for lock in .shoal/controller/*.lock; do
    n=0
    while [ -e "$lock" ] && command -v flock > /dev/null && ! flock -n "$lock" true; do
      [ $n -lt 50 ] && sign=TERM || sign=KILL
      kill -$sign "$(cat "$lock")" 2>/dev/null
      [ $n -lt 100 ] || return
      sleep 0.1
      n=$((n+1))
    done
  done
  rm -rf .shoal
}
"""

# $0 is the claim, $1 whose it must be, $2 says whether to take it from another cluster, $3 is the
# machine's id, $4 and $5 are scripts that end a node and remove a cluster's containers. What the
# other cluster runs there ends before the claim changes: it could not be found again afterwards,
# and would one day take the machine's new Ray for its own.
_CLAIM = rf"""
umask 022
STOP=$4 REMOVE=$5
{_EVICT}
new={PATH}.$$
printf '%s\n' "$0" > "$new" || exit 1
trap 'rm -f "$new"' EXIT
ln "$new" {PATH} 2>/dev/null && exit 0
user=$(stat -c %U {PATH})
if [ -r {PATH} ]; then read -r owner node id < {PATH}; else owner=''; fi
if [ "$owner" != "$1" ] && [ "$2" != force ]; then
  [ -n "$owner" ] && echo "cluster $owner" || echo "a cluster of user $user"
  exit {EXIT_CLAIMED}
fi
if [ ! -O {PATH} ] && [ "$(id -u)" != 0 ]; then
  echo "$user"; echo {PATH}
  exit {EXIT_OWNED_BY_OTHER_USER}
fi
if [ -n "$owner" ] && [ "$owner" != "$1" ]; then
  id=${{id:-$3}}
  evict || {{ echo "what cluster $owner runs there does not end" >&2; exit 1; }}
fi
mv -f "$new" {PATH}
"""

# $0 is whose it must be.
_IS_OWNED = rf'read -r owner _ < {PATH} && [ "$owner" = "$0" ]'
_RELEASE = rf"""
{_IS_OWNED} && rm -f {PATH}
true
"""

# $0 is whose it must be, if it is anybody's; $1 a command.
_UNLESS_ANOTHERS = rf"""
[ ! -e {PATH} ] || {{ {_IS_OWNED}; }} || exit 0
exec sh -c "$1"
"""


@dataclass(frozen=True)
class Claim:
    """A cluster, told from others of the same name by its head, and the node's name in it. By `id`
    the processes of the node are known."""

    owner: str
    node: str
    id: str = ""

    def __str__(self) -> str:
        return f"{self.owner} {self.node} {self.id}"


def owner(cluster: str, head_address: str) -> str:
    return f"{cluster}@{head_address}"


def claim_command(claim: Claim, *, force: bool) -> str:
    """A command that makes the machine this cluster's, or prints whose it is."""
    how = "force" if force else "ask"
    scripts = [ray_stop.SCRIPT, container.REMOVE]
    return quote(["sh", "-c", _CLAIM, str(claim), claim.owner, how, claim.id, *scripts])


def check_command(owner: str) -> str:
    """A command that fails unless the machine is this cluster's."""
    return quote(["sh", "-c", _IS_OWNED, owner])


def release_command(owner: str) -> str:
    """A command that gives the machine up, if it is this cluster's."""
    return quote(["sh", "-c", _RELEASE, owner])


def unless_anothers(owner: str, command: str) -> str:
    """A command that does nothing on a machine that is another cluster's: what is known of a node
    here, its address, is the same for all of them."""
    return quote(["sh", "-c", _UNLESS_ANOTHERS, owner, command])


def parse(line: str) -> Claim | None:
    owner, node, id, *_ = [*line.split(), "", "", ""]
    return Claim(owner, node, id) if owner and node else None
