"""Keeps SSH open for a laptop whose address changes: when an instance does not answer, the security
group of the cluster gets this machine's current address in place of its earlier one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Sequence

from shoal.core.errors import ShoalError
from shoal.core.events import Emit, Warned
from shoal.core.logs import suppress_and_log
from shoal.providers.aws import security_group
from shoal.providers.aws.aws_client import AwsClient
from shoal.providers.aws.launch_config import uses_internal_ips
from shoal.spec.cluster_spec import ClusterSpec

_log = logging.getLogger(__name__)

# How long an instance may be silent before the rules are checked. Long enough for one that answers
# to answer, short enough for SSH's own attempts to succeed afterwards.
_SILENCE_SECONDS = 4.0
_CHECK_INTERVAL_SECONDS = 60.0
_FINISH_SECONDS = 10.0


class SshAccess:
    """This machine's access to a cluster's instances by SSH, for all connections at once."""

    def __init__(self, aws: AwsClient, spec: ClusterSpec, emit: Emit) -> None:
        self._aws = aws
        self._spec = spec
        self._emit = emit
        self._lock = asyncio.Lock()
        self._checked_at = -math.inf

    @contextlib.asynccontextmanager
    async def ensured(self) -> AsyncIterator[None]:
        """Check the rules if the block, which connects to an instance, takes long."""
        began = asyncio.Event()
        checking = asyncio.ensure_future(self._check_after_silence(began))
        try:
            yield
            if began.is_set():  # it connected, but the earlier address may not be removed yet
                await asyncio.wait([checking], timeout=_FINISH_SECONDS)
        finally:
            checking.cancel()
            await asyncio.wait([checking])

    async def _check_after_silence(self, began: asyncio.Event) -> None:
        await self._aws.clock.sleep(_SILENCE_SECONDS)
        async with self._lock:
            now = self._aws.clock.monotonic()
            if now < self._checked_at + _CHECK_INTERVAL_SECONDS:
                return
            self._checked_at = now
            began.set()
            # The connection fails with an error of its own if this does not help.
            with suppress_and_log(_log, "check the SSH rules", ShoalError):
                await self.allow_this_machine()

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
