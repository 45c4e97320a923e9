"""The cluster's own secrets: Ray's authentication token, and the SSH key that the head uses to log
in to its workers. Both are created on the head and never leave the cluster.

Neither must be on a command line, in an event or in a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.core.errors import SetupError
from shoal.remote.runner import Runner, capture
from shoal.remote.scripts import script_command

# Relative to the home directory; the scripts use the same paths.
TOKEN_PATH = ".shoal/auth_token"

_SCRIPTS = "shoal.ray_runtime.scripts"
_AUTHORIZE_KEY = "authorize_key.sh"
_SECONDS = 60.0
_EXIT_HOME_OF_HEAD = 79


@dataclass(frozen=True)
class Credentials:
    """What a worker needs from its head: the token, and the public key to authorize."""

    token: str = field(repr=False)
    public_key: str


def _key_comment(cluster: str, head_id: str) -> str:
    """The comment of a cluster's key, which distinguishes it from other keys, even of clusters
    with the same name."""
    return f"shoal:{cluster}@{head_id}"


def revoke_command(cluster: str, head_id: str) -> str:
    """A command that removes this cluster's key from the authorized keys of a host, and prints a
    line if it was there."""
    return script_command(_SCRIPTS, "revoke_key.sh", _key_comment(cluster, head_id))


async def create_credentials(
    head: Runner, cluster: str, head_id: str, *, in_memory: bool = False
) -> Credentials:
    """The credentials of this head's cluster, created unless they exist. With `in_memory`, new ones
    are not on its disk before `store_credentials`."""
    where = "memory" if in_memory else "disk"
    command = script_command(_SCRIPTS, "create_secrets.sh", _key_comment(cluster, head_id), where)
    try:
        done, output = await capture(head, command, timeout=_SECONDS, skip_profile=True)
        token, public_key = output[-2:]
    except (TimeoutError, ValueError):
        raise _error("create") from None
    if not done.ok:
        raise _error("create")
    return Credentials(token, public_key)


async def store_credentials(head: Runner) -> None:
    """Write the credentials that this head has in memory to its disk."""
    command = script_command(_SCRIPTS, "store_secrets.sh")
    done = await head.run(command, timeout=_SECONDS, skip_profile=True)
    if not done.ok:
        raise _error("store")


async def trust_head(host: Runner, credentials: Credentials) -> None:
    """Let the head log in to a host that may become a worker."""
    command = script_command(
        _SCRIPTS, "trust_head.sh", credentials.public_key, libraries=[_AUTHORIZE_KEY]
    )
    done = await host.run(command, timeout=_SECONDS, skip_profile=True)
    if not done.ok:
        raise _error("store")


async def accept_credentials(worker: Runner, credentials: Credentials) -> None:
    """Let the head log in to a worker, and store the token there. Refuses a worker that shares the
    head's home directory, where each would overwrite the other's state."""
    command = script_command(
        _SCRIPTS,
        "accept_credentials.sh",
        credentials.public_key,
        str(_EXIT_HOME_OF_HEAD),
        libraries=[_AUTHORIZE_KEY],
    )
    done = await worker.run(
        command, stdin=credentials.token.encode(), timeout=_SECONDS, skip_profile=True
    )
    if done.code == _EXIT_HOME_OF_HEAD:
        raise SetupError(
            "the worker has the same home directory as the head",
            why="each node keeps its state in ~/.shoal, and would overwrite the head's",
            fix="log in as a user with a local home directory: "
            "shoal: {hosts: {ADDRESS: {user: NAME}}}, or remove the host from the cluster file; "
            "if it is a copy of the head, run there: rm -r ~/.shoal",
        )
    if not done.ok:
        raise _error("store")


def _error(verb: str) -> SetupError:
    # Without the output: it could hold the token.
    return SetupError(
        f"could not {verb} the cluster's token and key",
        why="~/.shoal or ~/.ssh is not writable, or ssh-keygen is missing",
        fix="check the home directory of ssh_user on the node\nshoal up CLUSTER",
    )
