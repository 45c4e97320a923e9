"""Ports of this machine that lead to ports of another, for as long as someone wants them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from shoal.core.errors import ConfigError, UnreachableError
from shoal.remote.line_buffer import readable
from shoal.remote.runner import PortForward
from shoal.remote.ssh_errors import diagnose
from shoal.remote.ssh_target import SshTarget, forwarding_argv

_OPEN_SECONDS = 30.0
_READY = b"shoal-ready"


def check_free(forwards: Sequence[PortForward]) -> None:
    """Raise `ConfigError` for a port of this machine that someone else has."""
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


async def hold_open(
    node: str, target: SshTarget, forwards: Sequence[PortForward], opened: Callable[[], None]
) -> None:
    """Keep the ports open until cancelled, and call `opened` once they are. Raises
    `UnreachableError` when the connection breaks."""
    check_free(forwards)
    # What runs there reads from us: it ends, and the connection with it, however we end.
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
        # What a login shell says comes first, and is not for us.
        await asyncio.wait_for(process.stdout.readuntil(_READY), _OPEN_SECONDS)
        opened()
        await process.wait()
    except asyncio.TimeoutError:
        raise UnreachableError(f"{target} does not answer", node=node) from None
    except asyncio.IncompleteReadError:
        said = (await process.stderr.read()).splitlines()
        raise diagnose(node, target, [readable(line) for line in said]).error from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
    raise UnreachableError(
        f"lost the connection to {target}",
        why="the machine went down, or the network to it did",
        fix="run it again once the machine is back",
        node=node,
    )
