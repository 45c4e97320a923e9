"""SSH access by firewall rules: they get this machine's current address in place of its earlier
one."""

from __future__ import annotations

from shoal.core.events import Emit, Warned
from shoal.providers.gcp import firewall
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.project_settings import uses_internal_ips
from shoal.providers.vm.caller_address import fetch_caller_address, this_machine
from shoal.providers.vm.ssh_access import SshAccess
from shoal.spec.cluster_spec import ClusterSpec


class FirewallAccess(SshAccess):
    """SSH access by the firewall rules that were created for the cluster."""

    def __init__(self, gcp: GcpClient, spec: ClusterSpec, emit: Emit) -> None:
        super().__init__(gcp.clock)
        self._gcp = gcp
        self._spec = spec
        self._emit = emit

    async def allow_this_machine(self) -> None:
        spec = self._spec
        if spec.shoal.ssh_from or spec.auth.ssh_proxy_command or uses_internal_ips(spec):
            return
        caller = (await fetch_caller_address()).cidr
        changed = await firewall.allow_ssh_from(
            self._gcp, spec.cluster_name, [caller], this_machine()
        )
        for name in changed:
            self._emit(
                Warned(
                    "the address of this machine has changed",
                    why=f"the firewall rule {name} now allows SSH from {caller}",
                )
            )
