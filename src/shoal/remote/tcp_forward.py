"""Forwards ports of this machine to ports of an address that this machine can reach itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

from shoal.core.logs import suppress_and_log
from shoal.remote.port_forward import check_local_ports
from shoal.remote.runner import PortForward

_log = logging.getLogger(__name__)

_LOCALHOST = "127.0.0.1"
_CHUNK_BYTES = 65536


@contextlib.asynccontextmanager
async def forwarded_ports(address: str, forwards: Sequence[PortForward]) -> AsyncIterator[None]:
    """Forward ports inside the context. Raises `ConfigError` if a local port is in use."""
    check_local_ports(forwards)
    connections: set[asyncio.Task[None]] = set()
    with contextlib.ExitStack() as stack:
        for forward in forwards:

            async def serve(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                remote: int = forward.remote,
                is_same_port: bool = forward.local == forward.remote,
            ) -> None:
                # A program may listen on the node's address or, like most, on localhost.
                hosts = [address] if is_same_port else [address, _LOCALHOST]
                task = asyncio.ensure_future(_relay(reader, writer, hosts, remote))
                connections.add(task)
                task.add_done_callback(connections.discard)

            server = await asyncio.start_server(serve, _LOCALHOST, forward.local)
            stack.callback(server.close)
        try:
            yield
        finally:
            for task in connections:
                task.cancel()


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hosts: Sequence[str], port: int
) -> None:
    """Copy both directions of one connection until both are closed."""
    with contextlib.closing(writer):
        for host in hosts:
            with suppress_and_log(_log, f"connect to {host}:{port}", OSError):
                remote_reader, remote_writer = await asyncio.open_connection(host, port)
                break
        else:
            return  # closing the connection is what a closed port looks like
        with contextlib.closing(remote_writer):
            await asyncio.gather(_copy(reader, remote_writer), _copy(remote_reader, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress_and_log(_log, "relay a connection", OSError):
        while data := await source.read(_CHUNK_BYTES):
            target.write(data)
            await target.drain()
        target.write_eof()
