"""How a cluster's machines are logged in to: at which address, through whom, with which key, and
by which host key they are known."""

from __future__ import annotations

import functools
from pathlib import Path

from shoal.core.clock import Clock
from shoal.providers.aws import host_keys, key_pairs, tags
from shoal.providers.aws.launch_records import Journal
from shoal.providers.aws.termination_watch import TerminationWatch
from shoal.providers.model import Instance
from shoal.remote.ssh_target import SshTarget, control_directory
from shoal.spec.cluster_spec import ClusterSpec


class Doors:
    """The runners of one cluster's machines. `inside` says that we are in their network; pins are
    kept below `home`."""

    def __init__(
        self,
        spec: ClusterSpec,
        home: Path,
        journal: Journal,
        fates: TerminationWatch,
        clock: Clock,
        *,
        inside: bool,
    ) -> None:
        self._spec = spec
        self._home = home
        self._journal = journal
        self._fates = fates
        self._clock = clock
        self._inside = inside
        self._runners: dict[str, host_keys.FirstContactRunner] = {}

    def runner(self, instance: Instance, head: Instance | None) -> host_keys.FirstContactRunner:
        """The way to a machine; one without an address out here is reached through the head."""
        target = self._target(instance, head)
        known = self._runners.get(instance.id)
        if known is None or known.target != target:
            ended = functools.partial(self._fates.end_of, instance.id)
            known = host_keys.FirstContactRunner(instance.name, target, self._clock, ended)
            self._runners[instance.id] = known
        return known

    def _target(self, instance: Instance, head: Instance | None) -> SshTarget:
        spec = self._spec
        host = instance.address if self._inside else instance.public_address
        jump = None
        if not host and head is not None and head.id != instance.id:
            host, jump = instance.address, self._target(head, None)
        node_type = spec.node_types.get(instance.node_type, spec.head)
        own_key = spec.auth.ssh_private_key is not None or "KeyName" not in node_type.node_config
        return SshTarget(
            host=host or instance.address,
            user=instance.user,
            key=key_pairs.private_key(spec.auth) if own_key else None,
            proxy_command=spec.auth.ssh_proxy_command if jump is None else None,
            jump=jump,
            known_hosts=self._pinned(instance),
            host_key_alias=instance.id,
            control_dir=control_directory(),
        )

    def _pinned(self, instance: Instance) -> Path:
        known_hosts = self._home / "known_hosts" / instance.id
        record = self._journal.read(instance.tags.get(tags.TOKEN, ""))
        if record is not None and record.host_key and not known_hosts.exists():
            host_keys.pin(known_hosts, instance.id, record.host_key)
        return known_hosts
