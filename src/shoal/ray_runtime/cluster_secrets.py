"""The cluster's own secrets: the token that opens its Ray, and the key by which its head reaches
its workers. Both are born on the head and never leave the cluster; the user's key stays away.

Neither ever stands on a command line, in an event or in a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.core.errors import SetupError
from shoal.remote.runner import Runner, capture, quote

TOKEN_PATH = ".shoal/auth_token"
_SECONDS = 60.0

# Each file appears whole or not at all, and with its final mode. $0 is the key's comment.
_MAKE = r"""
set -e
umask 077
mkdir -p .shoal
if [ ! -s .shoal/auth_token ]; then
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > .shoal/auth_token.new
  mv .shoal/auth_token.new .shoal/auth_token
fi
case $(cat .shoal/cluster_key.pub 2>/dev/null) in *" $0") ;; *)
  rm -f .shoal/cluster_key .shoal/cluster_key.pub
  ssh-keygen -q -t ed25519 -N '' -C "$0" -f .shoal/cluster_key
esac
echo "$(cat .shoal/auth_token)"
cat .shoal/cluster_key.pub
"""

# Lets the head in. $0 is the public key, which is no secret. The last line that is there may lack
# its end, and must not become one with ours.
_TRUST = r"""
set -e
umask 077
mkdir -p .ssh
keys=.ssh/authorized_keys
touch "$keys"
if ! grep -qxF "$0" "$keys"; then
  [ -z "$(tail -c 1 "$keys")" ] || echo >> "$keys"
  printf '%s\n' "$0" >> "$keys"
fi
"""

# The same, and the token arrives on standard input. A machine that has the head's own key has the
# head's home directory.
_HOME_OF_HEAD = 79
_ACCEPT = rf"""
[ "$(cat .shoal/cluster_key.pub 2>/dev/null)" != "$0" ] || exit {_HOME_OF_HEAD}
{_TRUST}
mkdir -p .shoal
cat > .shoal/auth_token.new
mv .shoal/auth_token.new .shoal/auth_token
"""

# Forgets a cluster's key. $0 is its comment. By this file the owner gets in, so a line goes only if
# it is whole and ours, and the new list takes the old one's place only when all of it is written.
# Prints a line if there was something to forget.
_FORGET = r"""
set -e
keys=$(readlink -f .ssh/authorized_keys) && [ -f "$keys" ] || exit 0
grep -qF " $0" "$keys" || exit 0
is_ours() {
  case $1 in "ssh-ed25519 "*" $0") ;; *) return 1 ;; esac
  key=${1#ssh-ed25519 }
  case ${key%" $0"} in *" "*) return 1 ;; esac
}
new=$keys.shoal-new
trap 'rm -f "$new"' EXIT
cp -p "$keys" "$new"
while IFS= read -r line || [ -n "$line" ]; do
  is_ours "$line" || printf '%s\n' "$line" || exit 1
done < "$keys" > "$new"
cmp -s "$keys" "$new" && exit 0
mv -f "$new" "$keys"
echo forgotten
"""


@dataclass(frozen=True)
class Credentials:
    """What a worker needs of its head."""

    token: str = field(repr=False)
    public_key: str


def _comment(cluster: str, head_id: str) -> str:
    """How a cluster's key is told from others in a list of authorized keys, also from those of
    clusters that have the same name."""
    return f"shoal:{cluster}@{head_id}"


def forget_command(cluster: str, head_id: str) -> str:
    """A command that shuts this cluster's head out of a machine, and prints a line if it was let
    in before."""
    return quote(["sh", "-c", _FORGET, _comment(cluster, head_id)])


async def make(head: Runner, cluster: str, head_id: str) -> Credentials:
    """The credentials of this head's cluster, made now if there are none."""
    command = quote(["sh", "-c", _MAKE, _comment(cluster, head_id)])
    try:
        done, printed = await capture(head, command, timeout=_SECONDS)
        token, public_key = printed[-2:]
    except (TimeoutError, ValueError):
        raise _failed("make") from None
    if not done.ok:
        raise _failed("make")
    return Credentials(token, public_key)


async def trust(machine: Runner, credentials: Credentials) -> None:
    """Let the head in, on a machine that may become a worker."""
    done = await machine.run(quote(["sh", "-c", _TRUST, credentials.public_key]), timeout=_SECONDS)
    if not done.ok:
        raise _failed("keep")


async def accept(worker: Runner, credentials: Credentials) -> None:
    """Let the head in, and give the worker the token. A worker that shares the head's home
    directory is refused: neither could keep anything for itself there."""
    command = quote(["sh", "-c", _ACCEPT, credentials.public_key])
    done = await worker.run(command, stdin=credentials.token.encode(), timeout=_SECONDS)
    if done.code == _HOME_OF_HEAD:
        raise SetupError(
            "the machine has the head's home directory",
            why="each machine keeps its own state in ~/.shoal, and would destroy the head's there",
            fix="log in to it as a user whose home is on the machine itself: "
            "shoal: {hosts: {ADDRESS: {user: NAME}}}, or take it out; "
            "if it is a copy of the head, there: rm -r ~/.shoal",
        )
    if not done.ok:
        raise _failed("keep")


def _failed(verb: str) -> SetupError:
    # Without the output: it could hold the token.
    return SetupError(
        f"the machine cannot {verb} the cluster's token and key",
        why="~/.shoal or ~/.ssh is not writable, or ssh-keygen is missing",
        fix="look at the home directory of ssh_user there, then shoal up again",
    )
