"""An attached terminal: what is typed reaches the command, and so does Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import pty
import signal
import socket
import sys
import termios
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.remote.runner import PortForward, PreconditionFailedError
from shoal.remote.ssh_runner import SshRunner
from tests.polling import until
from tests.remote.sshd import command_lines, free_port, running

PROGRAM = textwrap.dedent(
    """
    import asyncio, fcntl, pickle, sys, termios
    from shoal.remote.ssh_runner import SshRunner
    if sys.stdin.isatty():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that it is told when the terminal goes
    with open(sys.argv[1], "rb") as file:
        target, arguments = pickle.load(file)
    code = asyncio.run(SshRunner("node-1", target).attach(**arguments))
    print("code", code, flush=True)
    """
)


class Terminal:
    """A terminal in which a program of ours attaches."""

    def __init__(self, descriptor: int, process: asyncio.subprocess.Process) -> None:
        self._descriptor = descriptor
        self.process = process
        self.screen = ""
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            self.screen += os.read(self._descriptor, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            asyncio.get_running_loop().remove_reader(self._descriptor)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def shows(self, text: str) -> None:
        await until(lambda: text in self.screen)

    async def leaves_keys_to_the_far_end(self) -> None:
        """The first output may be there before ssh has told the terminal not to act on keys."""
        await until(lambda: not termios.tcgetattr(self._descriptor)[3] & termios.ISIG)


Attach = Callable[..., AbstractAsyncContextManager[Terminal]]


@pytest.fixture
def attach(runner: SshRunner, tmp_path: Path) -> Attach:
    """Runs `runner.attach` in a program of its own that sits in a terminal."""

    @asynccontextmanager
    async def attached(**arguments: object) -> AsyncIterator[Terminal]:
        (tmp_path / "arguments").write_bytes(pickle.dumps((runner.target, arguments)))
        ours, theirs = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(tmp_path / "arguments")),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        terminal = Terminal(ours, process)
        try:
            yield terminal
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            asyncio.get_running_loop().remove_reader(ours)
            os.close(ours)

    return attached


async def test_a_command_has_a_terminal_and_its_exit_code_comes_back(attach: Attach) -> None:
    async with attach(command="tty; read -p 'name? ' name; echo hello $name; exit 3") as terminal:
        await terminal.shows("name? ")
        terminal.type("shoal\n")
        await terminal.shows("hello shoal")
        await terminal.shows("code 3")
        assert "/dev/" in terminal.screen
        assert "job control" not in terminal.screen


async def test_without_a_command_there_is_a_shell(attach: Attach) -> None:
    async with attach(command=None) as terminal:
        terminal.type("echo $((20 + 22)); exit 4\n")
        await terminal.shows("42")
        await terminal.shows("code 4")


async def test_a_shell_may_be_given_an_environment(attach: Attach) -> None:
    async with attach(command=None, env={"V": "it's"}) as terminal:
        terminal.type('echo "<$V>"; exit\n')
        await terminal.shows("<it's>")
        await terminal.shows("code 0")


async def test_ctrl_c_reaches_the_command_and_is_its_to_handle(attach: Attach) -> None:
    command = "trap 'echo caught; exit 5' INT; echo begun; while :; do sleep 0.05; done"
    async with attach(command=command) as terminal:
        await terminal.shows("begun")
        await terminal.leaves_keys_to_the_far_end()
        terminal.type("\x03")
        await terminal.shows("caught")
        await terminal.shows("code 5")


async def test_losing_the_terminal_ends_the_command(attach: Attach) -> None:
    async with attach(command="echo begun; sleep 7320") as terminal:
        await terminal.shows("begun")
        await until(lambda: running("7320"))
    await until(lambda: not running("7320"))


async def test_a_secret_is_in_the_environment_and_nowhere_else(attach: Attach) -> None:
    command = 'echo "<$TOKEN>"; read -r'
    async with attach(command=command, env={"TOKEN": "s3cr3t-t0k3n"}) as terminal:
        await terminal.shows("<s3cr3t-t0k3n>")
        assert not [line for line in command_lines() if "s3cr3t" in line]
        for path in Path("/tmp").glob("tmp.*"):
            with contextlib.suppress(OSError):  # of others, who remove theirs meanwhile
                assert b"s3cr3t" not in path.read_bytes()


async def test_a_forwarded_port_leads_to_the_machine_as_long_as_the_command_runs(
    attach: Attach,
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    dashboard = await asyncio.start_server(greet, "127.0.0.1")
    forward = PortForward(local=free_port(), remote=dashboard.sockets[0].getsockname()[1])
    async with dashboard:
        async with attach(command="echo begun; read -r", forwards=[forward]) as terminal:
            await terminal.shows("begun")
            reader, writer = await asyncio.open_connection("127.0.0.1", forward.local)
            assert await reader.read() == b"hello"
            writer.close()
        await until(lambda: not listens(forward.local))


async def test_a_port_that_is_taken_is_named_before_anything_is_run(runner: SshRunner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of this machine"):
            await runner.attach("touch ran", forwards=[PortForward(port, 8265)])
    assert not (await runner.run("test -e ran")).ok


@pytest.mark.parametrize("tty", [True, False])
async def test_nothing_is_run_where_something_is_not_as_it_must_be(
    runner: SshRunner, tty: bool
) -> None:
    with pytest.raises(PreconditionFailedError):
        await runner.attach("touch ran", tty=tty, precondition="echo no; false")
    assert not (await runner.run("test -e ran")).ok


async def test_a_command_runs_where_all_is_as_it_must_be(
    runner: SshRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await runner.attach("echo ran", tty=False, precondition="echo yes # it is") == 0
    assert capfd.readouterr() == ("ran\n", "")


async def test_without_a_terminal_the_streams_are_as_they_are(
    runner: SshRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    code = await runner.attach("printf 'a\\nb'; echo e >&2; exit 6", tty=False)
    assert code == 6
    assert capfd.readouterr() == ("a\nb", "e\n")


async def test_without_a_terminal_being_interrupted_ends_the_command(
    runner: SshRunner, tmp_path: Path
) -> None:
    arguments = {"command": "sleep 7321 & trap 'echo told' INT; echo begun; wait", "tty": False}
    (tmp_path / "arguments").write_bytes(pickle.dumps((runner.target, arguments)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(tmp_path / "arguments")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    said = await process.stdout.read()
    assert said.endswith(b"code 130\n")
    await until(lambda: not running("7321"))


async def test_a_tunnel_stands_until_it_is_let_go(runner: SshRunner) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1")
    forward = PortForward(local=free_port(), remote=server.sockets[0].getsockname()[1])
    opened = asyncio.Event()
    async with server:
        holding = asyncio.ensure_future(runner.forward([forward], opened.set))
        await asyncio.wait_for(opened.wait(), 60)
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.local)
        assert await reader.read() == b"hello"
        writer.close()
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        await until(lambda: not listens(forward.local))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
