"""Prepares and cleans up hosts that exist before and after their cluster. Never ends what another
cluster runs on a host."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from shoal.bootstrap import claims
from shoal.bootstrap.node_commands import run_on_each
from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.core.logs import suppress_and_log
from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.ray_runtime import cluster_secrets
from shoal.ray_runtime.cluster_secrets import Credentials
from shoal.ray_runtime.ray_stop import stop_command
from shoal.remote import head_connections
from shoal.remote.container import remove_containers
from shoal.remote.runner import Runner, capture
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 6.0


class ExistingHosts:
    """The hosts of a cluster that exist before and after it.

    `_without_key` are the ids of hosts that are known not to authorize the cluster's key.
    """

    def __init__(self, spec: ClusterSpec, provider: Provider, hosts: Sequence[Instance]) -> None:
        self._spec = spec
        self._provider = provider
        self._hosts = {host.id: host for host in hosts}
        head, *_ = hosts
        self._revoke_key_command = cluster_secrets.revoke_command(spec.cluster_name, head.id)
        claim = provider.capabilities.claim_of(head)
        self._close_command = head_connections.close_command(claim.owner) if claim else "true"
        self._without_key: set[str] = set()

    async def authorize_key(
        self, credentials: Credentials, bootstrapping: Collection[str] = ()
    ) -> None:
        """Let the head log in to every host that may become a worker. A host that does not answer
        is skipped, and so are those with these ids, where bootstrap does it."""
        workers = [
            i for i in self._hosts.values() if i.role == "worker" and i.id not in bootstrapping
        ]
        await self._on_reachable(
            workers, lambda i: cluster_secrets.trust_head(self._runner(i), credentials)
        )

    async def clean_up(self, instances: Sequence[Instance]) -> None:
        """Remove everything of the cluster from these hosts: its processes, containers, files and
        claim. Raises `IncompleteError` that names the hosts where that failed."""
        ids = {i.id for i in instances}
        # A worker alone keeps the key: the head may need that host again.
        includes_head = any(i.role == "head" for i in instances)
        if includes_head:  # first: behind a head, the other hosts are reachable only through it
            await self._remove_key([i for i in self._hosts.values() if i.id not in ids])
        await run_on_each(
            instances,
            self._runner,
            "clean up",
            lambda i: self._clean_up_commands(i, revoke_key=includes_head),
        )
        if includes_head:
            self._without_key |= ids

    async def remove_key(self) -> list[str]:
        """Remove the cluster's key from all hosts that answer, also from those that were never
        used. Returns the names of the hosts that had it."""
        return await self._remove_key(
            [i for i in self._hosts.values() if i.id not in self._without_key]
        )

    def _clean_up_commands(self, instance: Instance, *, revoke_key: bool) -> list[str]:
        claim = self._provider.capabilities.claim_of(instance)
        commands = [stop_command(instance.id), cleanup_command(instance)]
        revoke = [self._revoke_key_command] if revoke_key else []
        if claim is None:
            return [*commands, *revoke]
        owner = claim.owner
        guarded = [claims.unless_claimed_by_others(owner, command) for command in commands]
        # Last, because the connection may be the head's own.
        close = [self._close_command] if revoke_key else []
        return [*guarded, *revoke, claims.release_command(owner), *close]

    async def _remove_key(self, hosts: Sequence[Instance]) -> list[str]:
        names = []

        async def revoke(host: Instance) -> None:
            done, lines = await capture(
                self._runner(host),
                f"{self._revoke_key_command} && {self._close_command}",
                timeout=_CONNECT_SECONDS,
                skip_profile=True,
            )
            if done.ok:
                self._without_key.add(host.id)
            if lines:
                names.append(host.name)

        await self._on_reachable(hosts, revoke)
        return sorted(names)

    async def _on_reachable(
        self, hosts: Sequence[Instance], action: Callable[[Instance], Awaitable[object]]
    ) -> None:
        async def act(host: Instance) -> None:
            with suppress_and_log(_log, f"reach host {host.name}", ShoalError, TimeoutError):
                await self._runner(host).connect(timeout=_CONNECT_SECONDS)
                await action(host)

        await run_all(act(host) for host in hosts)

    def _runner(self, host: Instance) -> Runner:
        return self._provider.runner(self._spec, host)


def cleanup_command(instance: Instance) -> str:
    """A command that removes a node's containers and files from its host. A worker that shares
    the head's home directory, as the head's key there shows, leaves the files."""
    remove = "rm -rf .shoal"
    if instance.role == "worker":
        remove = f"{{ [ -e .shoal/cluster_key ] || {remove}; }}"
    return f"{remove_containers(instance.cluster)} && {remove}"
