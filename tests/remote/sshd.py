"""A real OpenSSH server on loopback, run by the user of the tests, with a separate home directory.

A login sees an empty home directory and the login shell that the test chooses; everything else is
this machine.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from shoal.remote.ssh_target import SshTarget

_FORCED_COMMAND = """#!/bin/sh
cd "$HOME"
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec {shell} -c "$SSH_ORIGINAL_COMMAND"; fi
exec {shell}
"""


def new_key(path: Path, *, passphrase: str = "") -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True
    )
    return path


@dataclass
class Sshd:
    """One server. `directory` holds its keys, its log and, in `home`, the home directory."""

    directory: Path
    shell: str = "/bin/bash"
    settings: Sequence[str] = ()
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.home.mkdir()
        self.port = self.port or free_port()
        new_key(self.directory / "host_key")
        self.authorized_keys = self.directory / "authorized_keys"
        self.authorized_keys.touch()

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def authorize(self, key: Path) -> None:
        with self.authorized_keys.open("a") as file:
            file.write(key.with_name(f"{key.name}.pub").read_text())

    def start(self) -> None:
        forced_command = self.directory / "forced_command"
        forced_command.write_text(_FORCED_COMMAND.format(shell=self.shell))
        forced_command.chmod(0o755)
        config = self.directory / "sshd_config"
        config.write_text(
            "\n".join(
                [
                    *self.settings,
                    f"Port {self.port}",
                    "ListenAddress 127.0.0.1",
                    f"HostKey {self.directory}/host_key",
                    f"AuthorizedKeysFile {self.authorized_keys}",
                    "StrictModes no",
                    "UsePAM no",
                    "PermitRootLogin yes",
                    "PasswordAuthentication no",
                    "PidFile none",
                    f"SetEnv HOME={self.home}",
                    f"ForceCommand {forced_command}",
                    "",
                ]
            )
        )
        if os.geteuid() == 0:
            # A server that drops privileges needs this directory.
            Path("/run/sshd").mkdir(exist_ok=True)
        server = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert server is not None, "no sshd on this machine (see tests/system-packages.txt)"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [server, "-D", "-e", "-f", str(config)], stdout=log, stderr=log
            )
        self._wait_until_listening()

    def stop(self) -> None:
        """Kill the server and all of its connections, as a host that goes down does."""
        if self._process is None:
            return
        server = psutil.Process(self._process.pid)
        for child in self._connections(server):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.kill()
        self._process.wait()
        self._process = None

    def stall(self) -> None:
        """Stop answering, as a host that hangs does."""
        server = psutil.Process(self.pid)
        for process in (*self._connections(server), server):
            process.send_signal(signal.SIGSTOP)

    def _connections(self, server: psutil.Process) -> list[psutil.Process]:
        connections = []
        for process in server.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended meanwhile
                if process.name().startswith("sshd"):
                    connections.append(process)
        return connections

    def new_host_key(self) -> None:
        for name in ("host_key", "host_key.pub"):
            (self.directory / name).unlink()
        new_key(self.directory / "host_key")

    def _wait_until_listening(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.005)
        raise AssertionError((self.directory / "log").read_text())


def free_port() -> int:
    """An unused port below the system's ephemeral ports: another process could get one of those
    before the test uses it."""
    while True:
        port = random.randrange(12000, 20000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def target_of(server: Sshd, state: Path, key: Path, alias: str = "node-1") -> SshTarget:
    """How to log in to the server, with the laptop's state in `state`."""
    return SshTarget(
        host="127.0.0.1",
        port=server.port,
        user=pwd.getpwuid(os.getuid()).pw_name,
        key=key,
        known_hosts=state / "known hosts",
        host_key_alias=alias,
        control_dir=state / "c",
        config=Path("/dev/null"),
    )


def command_lines() -> Iterator[str]:
    """The command line of every process on this machine."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            yield shlex.join(process.cmdline())


def running(word: str) -> bool:
    """Whether a process that is not a zombie has `word` on its command line."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if word in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False
