"""Makes, checks and removes claims: which cluster a host belongs to, written on the host.

A claim is made atomically, so two clusters that want a host at the same time cannot both get it.
Everything here only builds commands; `providers.host_claims` says what a claim is.
"""

from __future__ import annotations

from shoal.providers.host_claims import CLAIM_FILE, Claim
from shoal.ray_runtime import ray_stop
from shoal.remote import container, head_connections
from shoal.remote.runner import quote
from shoal.remote.scripts import script_command

# Exit codes of `claim_command`: the host is another cluster's; only another user can change that.
EXIT_CLAIMED = 75
EXIT_OWNED_BY_OTHER_USER = 77

# $1 is the claim file, $2 the owner, $3 a command.
_IS_OWNED = 'read -r owner _ < "$1" && [ "$owner" = "$2" ]'
_RELEASE = f'{_IS_OWNED} && rm -f "$1"; true'
_UNLESS_OTHERS = f'[ ! -e "$1" ] || {{ {_IS_OWNED}; }} || exit 0; exec sh -c "$3"'


def claim_command(claim: Claim, *, force: bool) -> str:
    """A command that makes a host this cluster's. It exits with `EXIT_CLAIMED` and prints the
    owner if the host is another cluster's, or with `EXIT_OWNED_BY_OTHER_USER` and prints the user
    and the file to remove. With `force`, it ends what the other cluster runs there first."""
    mode = "force" if force else "ask"
    arguments = (CLAIM_FILE, str(claim), claim.owner, mode, claim.id)
    scripts = (
        ray_stop.stop_script(),
        container.remove_containers_script(),
        head_connections.close_script(),
    )
    return script_command("shoal.bootstrap.scripts", "claim_host.sh", *arguments, *scripts)


def check_command(owner: str) -> str:
    """A command that fails unless the host is this cluster's."""
    return _command(_IS_OWNED, owner)


def release_command(owner: str) -> str:
    """A command that removes the claim if it is this cluster's."""
    return _command(_RELEASE, owner)


def unless_claimed_by_others(owner: str, command: str) -> str:
    """A command that does nothing on a host that is another cluster's. A node's id is its host's
    address, which is the same for all clusters."""
    return _command(_UNLESS_OTHERS, owner, command)


def on_lease_expired(cluster: str, claim: Claim) -> str:
    """The command by which a host leaves a cluster that it has lost. Another cluster may then
    claim it; so may this one's head when it is back."""
    end = "\n".join([container.remove_containers(cluster), ray_stop.stop_command(claim.id)])
    close = head_connections.close_command(claim.owner)
    return f"{unless_claimed_by_others(claim.owner, end)}\n{release_command(claim.owner)}\n{close}"


def _command(script: str, *arguments: str) -> str:
    return quote(["sh", "-c", script, "claim", CLAIM_FILE, *arguments])
