"""How to reach a cluster's instances by SSH: address, jump host, user, key and pinned host key."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

from shoal.core.clock import Clock
from shoal.providers.model import Instance
from shoal.providers.vm import host_keys, ssh_keys, tags
from shoal.providers.vm.first_ssh_contact import FirstContactRunner
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.providers.vm.ssh_access import SshAccess
from shoal.providers.vm.waiters import TerminationWatch
from shoal.remote.ssh_target import SshTarget, control_directory
from shoal.spec.cluster_spec import ClusterSpec


class InstanceRunners:
    """The runners of one cluster's instances. `in_vpc` means that this machine is in their
    network. Pinned host keys are kept below `home`. `ssh_access` is of this machine's address; None
    on a head, which has a private one. `pin_host_key` pins the host key that the cloud reports
    of an instance, in a file and by a deadline."""

    def __init__(
        self,
        spec: ClusterSpec,
        home: Path,
        launch_records: LaunchRecords,
        termination_watch: TerminationWatch,
        clock: Clock,
        ssh_access: SshAccess | None,
        *,
        in_vpc: bool,
        pin_host_key: Callable[[Instance, Path, float], Awaitable[None]] | None = None,
    ) -> None:
        self._spec = spec
        self._home = home
        self._launch_records = launch_records
        self._termination_watch = termination_watch
        self._clock = clock
        self._ssh_access = ssh_access
        self._in_vpc = in_vpc
        self._pin_host_key = pin_host_key
        self._runners: dict[str, FirstContactRunner] = {}

    def runner(self, instance: Instance, head: Instance | None) -> FirstContactRunner:
        """The runner for an instance; one without a public address is reached through the head."""
        target = self._target(instance, head)
        runner = self._runners.get(instance.id)
        if runner is None or runner.target != target:
            terminated = functools.partial(self._termination_watch.wait, instance.id)
            last_pending = functools.partial(self._termination_watch.last_pending, instance.id)
            pin = self._pin_host_key and functools.partial(
                self._pin_host_key, instance, target.known_hosts
            )
            runner = FirstContactRunner(
                instance.name, target, self._clock, terminated, self._ssh_access, last_pending, pin
            )
            self._runners[instance.id] = runner
        return runner

    def _target(self, instance: Instance, head: Instance | None) -> SshTarget:
        spec = self._spec
        host = instance.address if self._in_vpc else instance.public_address
        if spec.auth.ssh_proxy_use_node_id:
            # As in Ray: the proxy command, such as Session Manager's, takes the id for %h.
            host = instance.id
        jump = None
        if not host and head is not None and head.id != instance.id:
            host, jump = instance.address, self._target(head, None)
        node_type = spec.node_types.get(instance.node_type, spec.head)
        has_known_key = (
            spec.auth.ssh_private_key is not None or "KeyName" not in node_type.node_config
        )
        return SshTarget(
            host=host or instance.address,
            user=instance.user,
            key=ssh_keys.private_key_path(spec.auth) if has_known_key else None,
            proxy_command=spec.auth.ssh_proxy_command if jump is None else None,
            jump=jump,
            known_hosts=self._pinned(instance),
            host_key_alias=instance.id,
            control_dir=control_directory(),
        )

    def _pinned(self, instance: Instance) -> Path:
        known_hosts = self._home / "known_hosts" / instance.id
        record = self._launch_records.read(instance.tags.get(tags.TOKEN, ""))
        if record is not None and record.host_key and not known_hosts.exists():
            host_keys.pin(known_hosts, instance.id, record.host_key)
        return known_hosts
