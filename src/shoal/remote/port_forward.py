"""Forwards ports of this machine to ports of a host until cancelled."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
from collections.abc import Callable, Sequence

from shoal.core.errors import ConfigError, SetupError, UnreachableError
from shoal.remote.command_output import to_text
from shoal.remote.process import send_signal
from shoal.remote.runner import PortForward
from shoal.remote.ssh_errors import classify, login_command
from shoal.remote.ssh_target import SshTarget, forwarding_argv, forwarding_test_argv

_log = logging.getLogger(__name__)

_OPEN_SECONDS = 30.0
_READY = b"shoal-ready"

_CHANNEL_ANSWER = re.compile(rb"channel \d+: open (confirm|failed)")
_PROHIBITED = b"administratively prohibited"


def check_local_ports(forwards: Sequence[PortForward]) -> None:
    """Raise `ConfigError` if a local port is in use."""
    for forward in forwards:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", forward.local))
            except OSError as error:
                raise ConfigError(
                    f"port {forward.local} of this machine cannot be used",
                    why=error.strerror or str(error),
                    fix="choose another local port",
                ) from None


async def check_forwarding_allowed(
    node: str, target: SshTarget, forwards: Sequence[PortForward]
) -> None:
    """Raise `SetupError` if sshd refuses to forward a port. ssh itself would open the local port,
    and close each connection to it without a word."""
    for forward in forwards:
        if _PROHIBITED in await _answer_of_sshd(target, forward.remote):
            raise SetupError(
                f"the sshd of {target} does not forward port {forward.remote}",
                why="its configuration, or the line of your key in ~/.ssh/authorized_keys, "
                "prohibits it",
                fix="set `AllowTcpForwarding yes` in /etc/ssh/sshd_config there, and remove "
                "`restrict` or `no-port-forwarding` from the key's line; then: "
                f"{login_command(target, 'sudo systemctl reload ssh || sudo service sshd reload')}",
                node=node,
            )


async def _answer_of_sshd(target: SshTarget, port: int) -> bytes:
    """The line in which sshd allows or refuses a connection to a port of the host; empty if the
    login fails, which the forwarding itself will report."""
    process = await asyncio.create_subprocess_exec(
        *forwarding_test_argv(target, port),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None

    async def read(stream: asyncio.StreamReader) -> bytes:
        async for line in stream:
            if _CHANNEL_ANSWER.search(line):
                return line
        return b""

    try:
        return await asyncio.wait_for(read(process.stderr), _OPEN_SECONDS)
    except asyncio.TimeoutError:
        _log.info("sshd of %s did not say whether it forwards port %d", target, port)
        return b""
    finally:
        if process.returncode is None:
            send_signal(process.pid, signal.SIGTERM)
        await process.wait()


async def forward_ports(
    node: str, target: SshTarget, forwards: Sequence[PortForward], opened: Callable[[], None]
) -> None:
    """Forward the ports until cancelled, and call `opened` once they are open. Raises
    `UnreachableError` if the connection breaks."""
    check_local_ports(forwards)
    await check_forwarding_allowed(node, target, forwards)
    # The remote command reads from this process: it ends, and the connection with it, however this
    # process ends.
    argv = [*forwarding_argv(target, forwards), "-T", "--", target.host]
    process = await asyncio.create_subprocess_exec(
        *(*argv, f"echo {_READY.decode()}; exec cat >/dev/null"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        # The output of a login shell comes first.
        await asyncio.wait_for(process.stdout.readuntil(_READY), _OPEN_SECONDS)
        opened()
        await process.wait()
    except asyncio.TimeoutError:
        raise UnreachableError(f"{target} does not answer", node=node) from None
    except asyncio.IncompleteReadError:
        output = (await process.stderr.read()).splitlines()
        raise classify(node, target, [to_text(line) for line in output]).error from None
    finally:
        if process.returncode is None:
            send_signal(process.pid, signal.SIGTERM)
        await process.wait()
    raise UnreachableError(
        f"lost the connection to {target}",
        why="the host or the network to it went down",
        fix="run it again once the host is back",
        node=node,
    )
