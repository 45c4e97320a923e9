"""SSH access by security groups: they get this machine's current address in place of its earlier
one."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.events import Emit, Warned
from shoal.providers.aws import security_group
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.launch_config import uses_internal_ips
from shoal.providers.vm.ssh_access import SshAccess
from shoal.spec.cluster_spec import ClusterSpec


class SecurityGroupAccess(SshAccess):
    """SSH access by the rules of the cluster's security groups."""

    def __init__(self, aws: AwsClient, spec: ClusterSpec, emit: Emit) -> None:
        super().__init__(aws.clock)
        self._aws = aws
        self._spec = spec
        self._emit = emit

    async def allow_this_machine(self) -> None:
        """Allow SSH from this machine's current address in the groups that were created for the
        cluster, unless the file says from where it is allowed."""
        settings = self._spec.provider.settings.get("security_group") or {}
        own_rules: Sequence[dict[str, object]] = settings.get("IpPermissions") or ()
        if self._is_fixed_by_file() or any(map(security_group.covers_ssh, own_rules)):
            return
        cluster = self._spec.cluster_name
        caller = await security_group.fetch_caller_ranges()
        for group in await security_group.list_groups(self._aws, cluster):
            if security_group.allows_ssh(group, caller):
                continue
            await security_group.ensure_rules(
                self._aws, cluster, group, settings=settings, ssh_from=caller
            )
            self._emit(
                Warned(
                    "the address of this machine has changed",
                    why=f"the security group {group['GroupName']} now allows SSH from "
                    f"{', '.join(caller)}",
                )
            )

    def _is_fixed_by_file(self) -> bool:
        """Whether the file says from where SSH is allowed, or this machine's public address does
        not matter."""
        spec = self._spec
        return bool(spec.shoal.ssh_from or spec.auth.ssh_proxy_command or uses_internal_ips(spec))
