"""The shared connection: what is retried, what fails at once, and how a dead one is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import ConfigError, SetupError, UnreachableError
from shoal.remote import control_master
from shoal.remote.control_master import stop_multiplexing
from shoal.remote.ssh_errors import HostKeyChangedError, LoginDeniedError
from shoal.remote.ssh_runner import SshRunner
from shoal.remote.ssh_target import SshTarget, prepare_control_directory
from tests.polling import until
from tests.remote.sshd import Sshd, free_port, new_key

pytestmark = pytest.mark.processes

NewServer = Callable[..., tuple[Sshd, SshTarget]]


class InstantClock(SystemClock):
    """A clock on which sleeping takes no time. `on_sleep` is called during the n-th sleep."""

    def __init__(self, on_sleep: Callable[[], None] = lambda: None, *, at: int = 1) -> None:
        self.count = 0
        self.ahead = 0.0
        """The sum of all sleeps, by which this clock is ahead of the real one."""
        self._on_sleep = on_sleep
        self._at = at

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead

    async def sleep(self, seconds: float) -> None:
        self.count += 1
        self.ahead += seconds
        if self.count == self._at:
            self._on_sleep()


def masters(target: SshTarget) -> list[psutil.Process]:
    """The ssh processes that hold a connection to this target, shared or not."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if f"ControlPath={target.socket}" in process.cmdline() and "-N" in process.cmdline():
                processes.append(process)
    return processes


@pytest.fixture
def no_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed attempt is not retried within 20 s."""
    monkeypatch.setattr(control_master, "_FIRST_PAUSE", 60)


async def test_a_host_that_comes_up_later_is_waited_for(new_server: NewServer) -> None:
    server, target = new_server()
    clock = InstantClock(server.start, at=3)
    runner = SshRunner("node-1", target, clock=clock)
    await runner.connect(timeout=60)
    assert clock.count == 3
    assert (await runner.run("echo here")).tail == ("here",)


async def test_a_host_that_never_comes_up_is_an_error_at_the_deadline(
    new_server: NewServer,
) -> None:
    _, target = new_server()
    clock = InstantClock()
    began = clock.monotonic()
    with pytest.raises(UnreachableError, match="no SSH server listens there") as failure:
        await SshRunner("node-1", target, clock=clock).connect(timeout=20)
    assert clock.monotonic() - began > 15
    assert clock.ahead <= 20
    assert failure.value.node == "node-1"


async def test_a_port_that_accepts_and_stays_silent_is_an_error_at_the_deadline(
    new_server: NewServer,
) -> None:
    server, target = new_server()
    mute = socket.create_server(("127.0.0.1", server.port))
    with mute, pytest.raises(UnreachableError, match="does not answer"):
        await asyncio.wait_for(SshRunner("node-1", target).connect(timeout=1), 60)


@pytest.fixture
def python_3_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where asyncio.TimeoutError is a separate class."""

    class Late(Exception):
        pass

    for module in (asyncio, asyncio.exceptions):
        monkeypatch.setattr(module, "TimeoutError", Late)


async def test_a_host_that_sends_its_banner_only_is_an_error_on_every_python(
    new_server: NewServer, python_3_10: None
) -> None:
    server, target = new_server()

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-Silent\r\n")

    mute = await asyncio.start_server(greet, "127.0.0.1", server.port)
    async with mute:
        with pytest.raises(UnreachableError, match="does not answer"):
            await SshRunner("node-1", target).connect(timeout=1)


async def test_a_connection_whose_ssh_process_hangs_is_abandoned_on_every_python(
    new_server: NewServer, python_3_10: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_master, "_CONTROL_COMMAND_SECONDS", 0.5)
    _, target = new_server()
    prepare_control_directory(target.control_dir)
    hung = socket.socket(socket.AF_UNIX)
    with hung:
        hung.bind(str(target.socket))
        hung.listen()
        await stop_multiplexing(target)
    assert not target.socket.exists()


async def test_a_key_that_is_installed_late_is_waited_for(
    new_server: NewServer, tmp_path: Path
) -> None:
    server, target = new_server()
    late = new_key(tmp_path / "late")
    server.start()
    clock = InstantClock(lambda: server.authorize(late))
    runner = SshRunner("node-1", replace(target, key=late), clock=clock)
    await runner.connect(timeout=60)
    assert clock.count == 1
    await runner.disconnect()


async def test_a_key_that_stays_rejected_is_an_error_after_the_login_grace(
    new_server: NewServer, tmp_path: Path
) -> None:
    server, target = new_server()
    stranger = new_key(tmp_path / "stranger")
    server.start()
    clock = InstantClock()
    runner = SshRunner("node-1", replace(target, key=stranger), login_grace=20, clock=clock)
    began = clock.monotonic()
    with pytest.raises(LoginDeniedError) as failure:
        await runner.connect(timeout=600)
    assert str(stranger) in failure.value.why
    assert clock.monotonic() - began > 15
    assert clock.ahead <= 20
    assert clock.count < 10, "so many failed logins could get the address banned"


async def test_a_changed_host_key_is_rejected_until_the_old_one_is_forgotten(
    new_server: NewServer,
) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target)
    await runner.connect(timeout=60)
    server.stop()
    server.new_host_key()
    server.start()
    with pytest.raises(HostKeyChangedError) as failure:
        await runner.connect(timeout=60)
    command = failure.value.fix.partition(": ")[2]
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    await runner.connect(timeout=60)


async def test_a_reused_address_is_not_a_changed_host_key(
    new_server: NewServer,
) -> None:
    first, target = new_server("first")
    first.start()
    await SshRunner("first", target).connect(timeout=60)
    first.stop()
    second, other = new_server("second", port=first.port)
    second.start()
    await SshRunner("second", other).connect(timeout=60)


async def test_a_key_that_other_users_can_read_is_an_error_immediately(
    new_server: NewServer, tmp_path: Path
) -> None:
    server, target = new_server()
    server.start()
    exposed = new_key(tmp_path / "it's exposed")
    exposed.chmod(0o644)
    server.authorize(exposed)
    with pytest.raises(ConfigError) as failure:
        await SshRunner("node-1", replace(target, key=exposed)).connect(timeout=60)
    assert shlex.split(failure.value.fix) == ["chmod", "600", str(exposed)]


async def test_a_public_key_is_not_a_private_key(new_server: NewServer, tmp_path: Path) -> None:
    _, target = new_server()
    private = new_key(tmp_path / "id")
    public = replace(target, key=tmp_path / "id.pub")
    with pytest.raises(ConfigError, match="is a public key") as failure:
        await SshRunner("node-1", public).connect(timeout=60)
    assert f"{{ssh_private_key: {private}}}" in failure.value.fix


async def test_a_key_of_putty_is_an_error_with_the_command_that_converts_it(
    new_server: NewServer, tmp_path: Path
) -> None:
    _, target = new_server()
    key = tmp_path / "id.ppk"
    key.write_text("PuTTY-User-Key-File-3: ssh-ed25519\n")
    with pytest.raises(ConfigError, match="PuTTY") as failure:
        await SshRunner("node-1", replace(target, key=key)).connect(timeout=60)
    assert failure.value.fix.startswith(f"puttygen {key} -O private-openssh")


async def test_a_missing_key_is_an_error_before_connecting(
    new_server: NewServer, tmp_path: Path
) -> None:
    _, target = new_server()
    with pytest.raises(ConfigError, match="does not exist"):
        await SshRunner("node-1", replace(target, key=tmp_path / "none")).connect(timeout=60)


async def test_an_unknown_host_name_is_an_error(new_server: NewServer) -> None:
    _, target = new_server()
    clock = InstantClock()
    runner = SshRunner("node-1", replace(target, host="no-such-host.invalid"), clock=clock)
    with pytest.raises(UnreachableError, match="name"):
        await runner.connect(timeout=2)


async def test_a_host_that_looks_like_an_option_is_not_used_as_one(
    new_server: NewServer, tmp_path: Path
) -> None:
    _, target = new_server()
    host = f"-oProxyCommand=touch {tmp_path}/pwned"
    with pytest.raises(SetupError):
        await SshRunner("node-1", replace(target, host=host)).connect(timeout=1)
    assert not (tmp_path / "pwned").exists()


async def test_an_account_that_runs_no_commands_is_not_a_lost_host(
    new_server: NewServer, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.write_text("#!/bin/sh\nprintf 'Please login as the user \"ubuntu\"'\nexit 142\n")
    closed.chmod(0o755)
    server, target = new_server(shell=str(closed))
    server.start()
    with pytest.raises(SetupError, match='Please login as the user "ubuntu"') as failure:
        await SshRunner("node-1", target).connect(timeout=60)
    assert "ssh_user" in failure.value.fix


SHELLS = [path for name in ("dash", "zsh", "fish", "tcsh") if (path := shutil.which(name))]


@pytest.mark.parametrize("shell", SHELLS)
async def test_commands_run_in_bash_whatever_the_users_login_shell(
    new_server: NewServer, shell: str, tmp_path: Path
) -> None:
    server, target = new_server(shell=shell)
    server.start()
    runner = SshRunner("node-1", target)
    result = await runner.run('[[ $V == "a b!" ]] && echo "$BASH"', env={"V": "a b!"})
    assert result.tail[0].endswith("bash")
    (tmp_path / "file").write_text("x")
    awkward = "it's $HOME!\\\\ \\' \n é"
    await runner.put(tmp_path / "file", awkward)
    assert (server.home / awkward).read_text() == "x"
    assert await runner.attach('[[ $V == "a b!" ]] || exit 4', env={"V": "a b!"}, tty=False) == 0


async def test_concurrent_runners_share_one_connection(
    new_server: NewServer,
) -> None:
    server, target = new_server()
    server.start()
    runners = [SshRunner("node-1", target) for _ in range(5)]
    await asyncio.gather(*(runner.connect(timeout=60) for runner in runners))
    assert len(masters(target)) == 1


async def test_a_connection_whose_ssh_process_was_killed_is_replaced(new_server: NewServer) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target)
    await runner.connect(timeout=60)
    (master,) = masters(target)
    master.kill()
    assert (await runner.run("echo again")).tail == ("again",)


async def test_a_restarted_host_is_reached_again(new_server: NewServer) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target)
    await runner.connect(timeout=60)
    server.stop()
    server.start()
    assert (await runner.run("echo again")).tail == ("again",)


async def test_a_dead_connection_is_replaced_without_ending_the_commands_on_it(
    new_server: NewServer,
) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target, session_timeout=3)
    await runner.connect(timeout=60)
    waits = "touch started; until [ -e continue ]; do sleep 0.05; done; echo done"
    early = asyncio.ensure_future(runner.run(waits))
    await until((server.home / "started").exists)
    (master,) = masters(target)
    master.send_signal(signal.SIGSTOP)
    assert (await runner.run("touch continue; echo new")).tail == ("new",)
    master.send_signal(signal.SIGCONT)
    assert (await early).tail == ("done",)


async def test_a_slow_host_runs_a_command_once(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, target = new_server()
    (server.home / ".bashrc").write_text("sleep 1\n")
    server.start()
    stopped = []

    async def stop(target: SshTarget) -> None:
        stopped.append(target)
        await stop_multiplexing(target)

    monkeypatch.setattr(control_master, "stop_multiplexing", stop)
    runner = SshRunner("node-1", target, session_timeout=0.3)
    assert (await runner.run("echo x >> runs")).ok
    assert stopped, "the connection was replaced once"
    assert (server.home / "runs").read_text() == "x\n"


async def test_a_connection_that_breaks_during_a_command_is_not_a_failed_command(
    new_server: NewServer,
) -> None:
    server, target = new_server()
    server.start()
    runner = SshRunner("node-1", target)

    def stop_server(line: str, stream: str) -> None:
        server.stop()

    with pytest.raises(UnreachableError, match="while a command ran") as failure:
        await runner.run("echo last words; sleep 7310", on_line=stop_server, timeout=60)
    assert failure.value.output == ("last words",)


async def test_the_users_ssh_configuration_applies_except_for_harmful_options(
    new_server: NewServer, tmp_path: Path
) -> None:
    server, target = new_server()
    server.start()
    config = tmp_path / "my config"
    config.write_text(
        f"Host by-config\n HostName 127.0.0.1\n Port {server.port}\n"
        f"Host *\n RemoteCommand false\n RequestTTY force\n LocalForward {free_port()} x:1\n"
    )
    runner = SshRunner("node-1", replace(target, host="by-config", port=None, config=config))
    assert (await runner.run("echo here")).tail == ("here",)
    await runner.disconnect()


RELAY = """
import shutil, socket, sys, threading
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1]))).makefile("rwb", buffering=0)
stdin, stdout = open(0, "rb", buffering=0), open(1, "wb", buffering=0)
threading.Thread(target=shutil.copyfileobj, args=(stdin, peer), daemon=True).start()
shutil.copyfileobj(peer, stdout)
"""


async def test_a_proxy_command_is_used(new_server: NewServer, tmp_path: Path) -> None:
    server, target = new_server()
    server.start()
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY)
    arguments = shlex.quote(str(tmp_path / "arguments"))
    python = shlex.quote(sys.executable)
    command = f"echo '%h' %p > {arguments}; {python} {relay} {server.port}"
    runner = SshRunner("node-1", replace(target, host="by-proxy", proxy_command=command))
    assert (await runner.run("echo here")).tail == ("here",)
    await runner.disconnect()
    assert (tmp_path / "arguments").read_text() == f"by-proxy {server.port}\n"


async def test_the_error_output_of_a_proxy_command_is_in_the_error(
    new_server: NewServer, no_retry: None
) -> None:
    _, target = new_server()
    command = "echo 'TargetNotConnected: i-123' >&2; exit 1"
    runner = SshRunner("node-1", replace(target, proxy_command=command))
    with pytest.raises(UnreachableError, match="TargetNotConnected: i-123"):
        await runner.connect(timeout=6)


async def test_a_control_directory_that_other_users_can_read_is_rejected(
    new_server: NewServer, state: Path
) -> None:
    _, target = new_server()
    (state / "open").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="other users can modify"):
        await SshRunner("node-1", replace(target, control_dir=state / "open")).connect(timeout=5)


async def test_a_control_directory_too_long_for_sockets_is_rejected(
    new_server: NewServer, state: Path
) -> None:
    _, target = new_server()
    long = state / ("x" * 60)
    with pytest.raises(ConfigError, match="too long for connection sockets"):
        await SshRunner("node-1", replace(target, control_dir=long)).connect(timeout=5)


async def test_a_worker_is_reached_through_the_head(
    new_server: NewServer,
) -> None:
    head, by_head = new_server("head")
    worker, target = new_server("worker")
    head.start()
    worker.start()
    through = replace(target, jump=by_head)
    runner = SshRunner("worker", through)
    assert (await runner.run("pwd")).tail == (str(worker.home),)
    (master,) = masters(through)
    assert not [c for c in master.net_connections() if c.raddr and c.raddr.port == worker.port]
    head.stop()
    head.start()
    assert (await runner.run("echo again", timeout=60)).tail == ("again",)
    await runner.disconnect()


@pytest.mark.parametrize("settings", [["AllowTcpForwarding no"], []])
async def test_a_worker_that_the_head_cannot_reach_is_the_error_and_not_the_head(
    new_server: NewServer, settings: list[str], no_retry: None
) -> None:
    head, by_head = new_server("head", settings=settings)
    worker, target = new_server("worker")
    head.start()
    if settings:
        worker.start()
    runner = SshRunner("worker", replace(target, jump=by_head))
    with pytest.raises(UnreachableError, match="through") as failure:
        await runner.connect(timeout=6)
    assert str(by_head) in failure.value.fix


async def test_a_process_that_stopped_while_connecting_is_waited_for_until_the_deadline(
    new_server: NewServer,
) -> None:
    server, target = new_server()
    server.start()
    prepare_control_directory(target.control_dir)
    with target.socket.with_suffix(".lock").open("w") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(UnreachableError, match="another process holds"):
            await SshRunner("node-1", target).connect(timeout=0.5)
    await SshRunner("node-1", target).connect(timeout=20)
