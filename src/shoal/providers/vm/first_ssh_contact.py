"""The first SSH connection to an instance: waits for a booting instance, and replaces its one-time
host key.

The instance generates the new key itself. It is pinned locally before it is activated, so that an
interruption at any point leaves a key that both sides know.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from shoal.core.clock import Clock
from shoal.core.errors import UnreachableError
from shoal.providers.vm.host_keys import ONE_TIME_COMMENT, pin
from shoal.providers.vm.ssh_access import SshAccess
from shoal.remote.known_hosts import read
from shoal.remote.runner import capture
from shoal.remote.scripts import script_command
from shoal.remote.ssh_runner import RECONNECT_SECONDS, SshRunner
from shoal.remote.ssh_target import SshTarget

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30.0
# Timeouts of successive port probes: most are short, since the port may open just after a probe
# was sent; the last one is for instances on another continent.
_PROBE_TIMEOUTS = (0.25, 0.25, 0.25, 2.0)
_PROBE_PAUSE_SECONDS = 0.1
# How long a cloud may take until an instance runs.
_PENDING_SECONDS = 1200.0


class FirstContactRunner(SshRunner):
    """Connects to an instance that may still be booting, and replaces its one-time host key.
    `terminated` returns a reason when the instance is gone, which ends the wait. `ssh_access` lets
    this machine in if its address has changed. `last_pending` returns when the cloud last
    reported the instance as pending: the deadline counts from then, since it may take minutes to
    provide a large one. `pin_host_key` pins the host key that the cloud reports, before the
    first connection."""

    def __init__(
        self,
        name: str,
        target: SshTarget,
        clock: Clock,
        terminated: Callable[[], Awaitable[str]],
        ssh_access: SshAccess | None = None,
        last_pending: Callable[[], float | None] = lambda: None,
        pin_host_key: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(name, target, clock=clock)
        self._terminated = terminated
        self._ssh_access = ssh_access
        self._last_pending = last_pending
        self._pin_host_key = pin_host_key
        self._host_key_lock = asyncio.Lock()

    async def connect(self, *, timeout: float) -> None:
        connecting = asyncio.ensure_future(self._connect(timeout))
        terminating = asyncio.ensure_future(self._terminated())
        try:
            await asyncio.wait((connecting, terminating), return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise UnreachableError(
                    "the instance was terminated",
                    why=await terminating,
                    fix="launch another: shoal up CLUSTER",
                    node=self.name,
                )
            await connecting
        finally:
            connecting.cancel()
            terminating.cancel()
            await asyncio.wait((connecting, terminating))

    async def _connect(self, timeout: float) -> None:
        started_at = self._clock.monotonic()
        deadline = started_at + timeout
        while True:
            try:
                await self._connect_until(deadline)
                return
            except UnreachableError:
                booting_since = min(self._last_pending() or 0.0, started_at + _PENDING_SECONDS)
                if booting_since + timeout <= max(deadline, self._clock.monotonic()):
                    raise
                deadline = booting_since + timeout
                _log.info("%s was pending until recently, waiting longer", self.name)

    async def _connect_until(self, deadline: float) -> None:
        if self.target.jump is None and self.target.proxy_command is None:
            async with self._access():
                await self._wait_for_port(deadline)
        if self._pin_host_key is not None and not self.target.known_hosts.exists():
            async with self._host_key_lock:
                await self._pin_host_key(deadline)
        await super().connect(timeout=max(1.0, deadline - self._clock.monotonic()))
        async with self._host_key_lock:
            if known := self._one_time_keys():
                await self._replace_host_key(known)

    async def _open(self, timeout: float = RECONNECT_SECONDS) -> None:
        async with self._access():
            await super()._open(timeout)

    def _access(self) -> AbstractAsyncContextManager[None]:
        return contextlib.nullcontext() if self._ssh_access is None else self._ssh_access.ensured()

    async def _wait_for_port(self, deadline: float) -> None:
        """Wait until the SSH port accepts connections. A booting instance drops packets, and TCP
        would retransmit only after ever longer pauses."""
        port = self.target.port or 22
        for timeout in itertools.cycle(_PROBE_TIMEOUTS):
            opening = asyncio.open_connection(self.target.host, port)
            try:
                _, writer = await asyncio.wait_for(opening, timeout)
                writer.close()
                return
            except (OSError, asyncio.TimeoutError) as error:
                if self._clock.monotonic() > deadline:
                    raise UnreachableError(
                        f"{self.target} does not answer",
                        why=str(error) or "its SSH port did not respond",
                        fix="check that it runs, and that its firewall allows SSH from this "
                        "machine",
                        node=self.name,
                    ) from None
            await self._clock.sleep(_PROBE_PAUSE_SECONDS)

    def _one_time_keys(self) -> list[str]:
        """All pinned keys of the instance if the one-time key is among them, else none."""
        keys = read(self.target.known_hosts).get(self.target.host_key_alias, [])
        return keys if any(key.endswith(ONE_TIME_COMMENT) for key in keys) else []

    async def replace_host_key(self) -> None:
        """Replace the instance's host key, which must be pinned."""
        async with self._host_key_lock:
            known = read(self.target.known_hosts).get(self.target.host_key_alias, [])
            await self._replace_host_key(known)

    async def _replace_host_key(self, known: list[str]) -> None:
        """Without sudo the one-time key stays in use: it is still the right one."""
        done, output_lines = await capture(
            self, _as_root("create_host_key.sh"), timeout=_TIMEOUT_SECONDS
        )
        if not done.ok or not output_lines:
            _log.info("%s keeps its one-time host key: exit code %s", self.name, done.code)
            return
        alias, new = self.target.host_key_alias, output_lines[-1]
        pin(self.target.known_hosts, alias, new, *(key for key in known if key != new))
        done = await self.run(_as_root("activate_host_key.sh"), timeout=_TIMEOUT_SECONDS)
        if done.ok:
            pin(self.target.known_hosts, alias, new)


def _as_root(script: str) -> str:
    command = script_command("shoal.providers.vm.scripts", script)
    return f'"$(command -v sudo || echo env)" {command}'
