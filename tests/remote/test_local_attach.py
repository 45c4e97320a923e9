"""Attached commands on this machine: signals to Shoal reach them, and their ports are forwarded."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import PortForward
from tests.polling import alive, until

PROGRAM = """
import asyncio, pathlib, sys
from shoal.remote.local_runner import LocalRunner
runner = LocalRunner(pathlib.Path("."), {})
command = "sleep 600 & echo $! > child; sleep 600; echo never"
sys.exit(asyncio.run(runner.attach(command, tty=False)))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_the_process_ends_the_command_and_its_children(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path)
    child = tmp_path / "child"
    try:
        await until(lambda: child.exists() and child.read_text().endswith("\n"))
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    finally:
        process.kill()
        process.wait()
    await until(lambda: not alive(int(child.read_text())))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def echo_server(host: str, port: int) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"echo " + await reader.read())
        writer.close()

    async with await asyncio.start_server(serve, host, port):
        yield


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"hello")
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "127.77.200.1"])
async def test_a_forwarded_port_reaches_the_node_and_localhost(
    tmp_path: Path, listens_on: str
) -> None:
    runner = LocalRunner(tmp_path, {}, "127.77.200.1")
    local, remote = free_port(), free_port()
    opened = asyncio.Event()
    forwarding = asyncio.ensure_future(runner.forward([PortForward(local, remote)], opened.set))
    await asyncio.wait_for(opened.wait(), 30)
    assert await ask(local) == b""  # nothing listens yet
    async with echo_server(listens_on, remote):
        assert await asyncio.wait_for(ask(local), 30) == b"echo hello"
    forwarding.cancel()
    await asyncio.wait({forwarding})
    with pytest.raises(ConnectionRefusedError):
        await ask(local)


async def test_the_ports_of_an_attached_command_are_forwarded(tmp_path: Path) -> None:
    runner = LocalRunner(tmp_path, {})
    local, remote = free_port(), free_port()
    async with echo_server("127.0.0.1", remote):
        program = (
            "import socket; s = socket.create_connection(('127.0.0.1', %d)); s.sendall(b'hello'); "
            "s.shutdown(1); print(s.recv(99)); assert s.recv(99) == b''"
        )
        command = f'{sys.executable} -c "{program % local}"'
        assert await runner.attach(command, tty=False, forwards=[PortForward(local, remote)]) == 0


async def test_a_local_port_in_use_is_an_error(tmp_path: Path) -> None:
    port = free_port()
    async with echo_server("127.0.0.1", port):
        with pytest.raises(ConfigError, match=f"port {port} of this machine cannot be used"):
            await LocalRunner(tmp_path, {}).attach("true", forwards=[PortForward(port, 9)])
