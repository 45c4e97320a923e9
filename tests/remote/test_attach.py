"""Attached commands: with a terminal, where Ctrl-C reaches them, and without."""

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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, SetupError
from shoal.remote.container import Container
from shoal.remote.exec_protocol import PROFILE_ENDED, REPLACED_SHELL
from shoal.remote.runner import PortForward, PreconditionFailedError
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget
from tests.polling import until
from tests.remote.sshd import Sshd, command_lines, free_port, running

pytestmark = pytest.mark.processes

PROGRAM = textwrap.dedent(
    """
    import asyncio, fcntl, pickle, sys, termios
    from shoal.remote.ssh_runner import SshRunner
    if sys.stdin.isatty():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that it gets SIGHUP when the terminal closes
    with open(sys.argv[1], "rb") as file:
        target, container, arguments = pickle.load(file)
    runner = SshRunner("node-1", target, container=container)
    code = asyncio.run(runner.attach(**arguments))
    print("code", code, flush=True)
    """
)


class Terminal:
    """A terminal in which a process attaches to a command."""

    def __init__(self, descriptor: int, process: asyncio.subprocess.Process) -> None:
        self._descriptor = descriptor
        self.process = process
        self.screen = ""
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            self.screen += os.read(self._descriptor, 65536).decode(errors="replace")
        except OSError:  # the process has closed it
            asyncio.get_running_loop().remove_reader(self._descriptor)

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def shows(self, text: str) -> None:
        await until(lambda: text in self.screen)

    async def is_raw(self) -> None:
        """Wait for ssh to make the terminal raw: output may arrive before that."""
        await until(lambda: not termios.tcgetattr(self._descriptor)[3] & termios.ISIG)


Attach = Callable[..., AbstractAsyncContextManager[Terminal]]


@pytest.fixture
def attach(runner: SshRunner, tmp_path: Path) -> Attach:
    """Runs `runner.attach` in a separate process on a terminal."""

    @asynccontextmanager
    async def attached(
        container: Container | None = None, **arguments: object
    ) -> AsyncIterator[Terminal]:
        pickled = pickle.dumps((runner.target, container, arguments))
        (tmp_path / "arguments").write_bytes(pickled)
        parent_fd, child_fd = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(tmp_path / "arguments")),
            stdin=child_fd,
            stdout=child_fd,
            stderr=child_fd,
            start_new_session=True,
        )
        os.close(child_fd)
        terminal = Terminal(parent_fd, process)
        try:
            yield terminal
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            asyncio.get_running_loop().remove_reader(parent_fd)
            os.close(parent_fd)

    return attached


async def test_a_command_has_a_terminal_and_its_exit_code_is_returned(attach: Attach) -> None:
    async with attach(command="tty; read -p 'name? ' name; echo hello $name; exit 3") as terminal:
        await terminal.shows("name? ")
        terminal.type("shoal\n")
        await terminal.shows("hello shoal")
        await terminal.shows("code 3")
        assert "/dev/" in terminal.screen
        assert "job control" not in terminal.screen


async def test_without_a_command_a_shell_runs(attach: Attach) -> None:
    async with attach(command=None) as terminal:
        terminal.type("echo $((20 + 22)); exit 4\n")
        await terminal.shows("42")
        await terminal.shows("code 4")


async def test_a_shell_gets_the_environment(attach: Attach) -> None:
    async with attach(command=None, env={"V": "it's"}) as terminal:
        terminal.type('echo "<$V>"; exit\n')
        await terminal.shows("<it's>")
        await terminal.shows("code 0")


async def test_ctrl_c_reaches_the_command(attach: Attach) -> None:
    command = "trap 'echo caught; exit 5' INT; echo started; while :; do sleep 0.05; done"
    async with attach(command=command) as terminal:
        await terminal.shows("started")
        await terminal.is_raw()
        terminal.type("\x03")
        await terminal.shows("caught")
        await terminal.shows("code 5")


async def test_closing_the_terminal_ends_the_command(attach: Attach) -> None:
    async with attach(command="echo started; sleep 7320") as terminal:
        await terminal.shows("started")
        await until(lambda: running("7320"))
    await until(lambda: not running("7320"))


async def test_a_secret_is_in_the_environment_only(attach: Attach) -> None:
    command = 'echo "<$TOKEN>"; read -r'
    async with attach(command=command, env={"TOKEN": "s3cr3t-t0k3n"}) as terminal:
        await terminal.shows("<s3cr3t-t0k3n>")
        assert not [line for line in command_lines() if "s3cr3t" in line]
        for path in Path("/tmp").glob("tmp.*"):
            with contextlib.suppress(OSError):  # other processes delete their files meanwhile
                assert b"s3cr3t" not in path.read_bytes()


@pytest.mark.parametrize("line", ["exec fish", "exec tmux", "[ -t 0 ] || exit", "set -e; false"])
@pytest.mark.parametrize("has_container", [False, True], ids=["host", "container"])
async def test_a_dotfile_that_ends_the_shell_is_named(
    server: Sshd, attach: Attach, container: Container, line: str, has_container: bool
) -> None:
    (server.home / ".bashrc").write_text(f"case $- in *i*) {line} ;; esac\n")
    async with attach(container if has_container else None, command="echo ran") as terminal:
        await terminal.shows("ends or replaces the shell")
        assert "ran" not in terminal.screen.split()


async def test_a_dotfile_that_ends_the_shell_is_named_without_a_terminal(
    server: Sshd, runner: SshRunner
) -> None:
    (server.home / ".bashrc").write_text("case $- in *i*) exec fish ;; esac\n")
    with pytest.raises(SetupError, match="ends or replaces the shell") as raised:
        await runner.attach("echo ran", tty=False)
    assert ".bashrc" in raised.value.why


async def test_a_command_may_have_any_exit_code(runner: SshRunner) -> None:
    for code in (PROFILE_ENDED, REPLACED_SHELL):
        assert await runner.attach(f"exit {code}", tty=False) == code


async def test_a_command_in_a_container_has_a_terminal(
    attach: Attach, container: Container
) -> None:
    command = "tty; read -p 'name? ' name; echo \"hello $name\"; exit 3"
    async with attach(container, command=command) as terminal:
        await terminal.shows("name? ")
        terminal.type("it's me\n")
        await terminal.shows("hello it's me")
        await terminal.shows("code 3")
        assert "/dev/" in terminal.screen


async def test_closing_the_terminal_ends_the_command_in_a_container(
    attach: Attach, container: Container
) -> None:
    async with attach(container, command="echo started; sleep 7323") as terminal:
        await terminal.shows("started")
        await until(lambda: running("7323"))
    await until(lambda: not running("7323"))


async def test_a_port_is_forwarded_while_the_command_runs(
    attach: Attach,
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    dashboard = await asyncio.start_server(greet, "127.0.0.1")
    forward = PortForward(local=free_port(), remote=dashboard.sockets[0].getsockname()[1])
    async with dashboard:
        async with attach(command="echo started; read -r", forwards=[forward]) as terminal:
            await terminal.shows("started")
            reader, writer = await asyncio.open_connection("127.0.0.1", forward.local)
            assert await reader.read() == b"hello"
            writer.close()
        await until(lambda: not listens(forward.local))


async def test_a_local_port_in_use_is_an_error_before_the_command_runs(runner: SshRunner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as in_use:
        port = in_use.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of this machine"):
            await runner.attach("touch ran", forwards=[PortForward(port, 8265)])
    assert not (await runner.run("test -e ran")).ok


@pytest.mark.parametrize("tty", [True, False])
async def test_a_command_does_not_run_if_its_precondition_fails(
    runner: SshRunner, tty: bool
) -> None:
    with pytest.raises(PreconditionFailedError):
        await runner.attach("touch ran", tty=tty, precondition="echo no; false")
    assert not (await runner.run("test -e ran")).ok


async def test_a_command_runs_if_its_precondition_holds(
    runner: SshRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await runner.attach("echo ran", tty=False, precondition="echo yes # a comment") == 0
    assert capfd.readouterr() == ("ran\n", "")


async def test_without_a_terminal_the_streams_are_unchanged(
    runner: SshRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    code = await runner.attach("printf 'a\\nb'; echo e >&2; exit 6", tty=False)
    assert code == 6
    assert capfd.readouterr() == ("a\nb", "e\n")


async def test_without_a_terminal_sigint_ends_the_command(
    runner: SshRunner, tmp_path: Path
) -> None:
    arguments = {"command": "sleep 7321 & trap 'echo caught' INT; echo started; wait", "tty": False}
    (tmp_path / "arguments").write_bytes(pickle.dumps((runner.target, None, arguments)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(tmp_path / "arguments")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"started\n"
    process.send_signal(signal.SIGINT)
    output = await process.stdout.read()
    assert output.endswith(b"code 130\n")
    await until(lambda: not running("7321"))


async def test_ports_are_forwarded_until_cancelled(runner: SshRunner) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1")
    forward = PortForward(local=free_port(), remote=server.sockets[0].getsockname()[1])
    opened = asyncio.Event()
    async with server:
        forwarding = asyncio.ensure_future(runner.forward([forward], opened.set))
        await asyncio.wait_for(opened.wait(), 60)
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.local)
        assert await reader.read() == b"hello"
        writer.close()
        forwarding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forwarding
        await until(lambda: not listens(forward.local))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_an_sshd_that_does_not_forward_is_an_error_with_a_fix(
    new_server: Callable[..., tuple[Sshd, SshTarget]],
) -> None:
    server, target = new_server(settings=["AllowTcpForwarding no"])
    server.start()
    runner = SshRunner("head", target)
    forward = PortForward(local=free_port(), remote=8265)
    attempts: list[Awaitable[object]] = [
        runner.forward([forward], lambda: None),
        runner.attach("touch ran", tty=False, forwards=[forward]),
    ]
    for attempt in attempts:
        with pytest.raises(SetupError, match="does not forward port 8265") as failure:
            await asyncio.wait_for(attempt, 60)
        assert "AllowTcpForwarding yes" in failure.value.fix
    assert not (server.home / "ran").exists()
