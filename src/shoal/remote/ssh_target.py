"""Where a host is, how to log in to it, and the arguments of `ssh` for that.

Shoal uses the system's OpenSSH client, so that the user's agent, configuration, jump hosts and
hardware keys work as they do in a terminal. Nothing here starts a process.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.addresses import bracketed
from shoal.core.errors import ConfigError
from shoal.remote.runner import PortForward, quote

# The path of a Unix socket has at most 104 bytes on macOS and 108 on Linux, with its NUL.
# While a master starts, ssh listens at the path plus a dot and sixteen characters.
_SOCKET_PATH_LIMIT = 104 - 1 - 17

# An unused connection closes after this time: longer than most pauses between two commands.
_PERSIST_SECONDS = 600

# A connection counts as dead after fifteen seconds without an answer.
_ALIVE_INTERVAL = 5
_ALIVE_COUNT = 3

_FORWARD_CONNECT_SECONDS = 30
_OWN_CONNECTION = {"ControlMaster": "no", "ControlPath": "none"}

_ALIAS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:-]*")


@dataclass(frozen=True)
class SshTarget:
    """One host to log in to.

    Its host key is pinned in `known_hosts` under `host_key_alias`, not under its address, which
    other hosts had before and will have again. `control_dir` holds the sockets of open
    connections. `proxy_command` is that of ssh_config(5); `jump` is a host that can reach this one
    when this machine cannot. What is None is left to the user's ssh configuration, which `config`
    replaces if it is set.
    """

    host: str
    user: str
    known_hosts: Path
    host_key_alias: str
    control_dir: Path
    port: int | None = None
    key: Path | None = None
    proxy_command: str | None = None
    jump: SshTarget | None = None
    config: Path | None = None

    def __post_init__(self) -> None:
        if not _ALIAS.fullmatch(self.host_key_alias):
            raise ValueError(f"invalid host key alias: {self.host_key_alias}")
        if self.proxy_command is not None and self.jump is not None:
            raise ValueError("a host has a proxy command or a jump host, not both")

    @property
    def socket(self) -> Path:
        """The control socket of the shared connection, different for every different target."""
        return self.control_dir / hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def proxy_errors(self) -> Path:
        """The file that receives the error output of the proxy command."""
        return self.socket.with_suffix(".proxy")

    def __str__(self) -> str:
        host = bracketed(self.host)
        return f"{self.user}@{host}" + (f":{self.port}" if self.port is not None else "")


def control_directory(owner: str = "") -> Path:
    """The default `control_dir`: one per user, with a short path however long HOME is. That of a
    head, for the cluster `owner`, is separate, so that it can be removed with the cluster."""
    suffix = f"-{hashlib.sha256(owner.encode()).hexdigest()[:8]}" if owner else ""
    return Path("/tmp") / f"shoal-{os.getuid()}{suffix}"


def prepare_control_directory(directory: Path) -> None:
    """Create the directory for the sockets, or reject one that other users can modify."""
    if len(os.fsencode(directory / ("x" * 16))) > _SOCKET_PATH_LIMIT:
        raise ConfigError(
            f"the path {directory} is too long for connection sockets",
            why="the path of a socket has at most about 100 characters",
            fix="choose a shorter directory",
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or directory.is_symlink():
        raise ConfigError(
            f"other users can modify the directory {directory}",
            why="a user who can write there can run commands over Shoal's connections",
            fix=f"check what is in it, then delete it: {quote(['rm', '-r', str(directory)])}",
        )


def login_argv(target: SshTarget, *, connect_timeout: int, log_level: str = "ERROR") -> list[str]:
    """`ssh` and the options of a new connection, without the host name."""
    argv = [
        *_program(target),
        *_options(
            BatchMode="yes",
            ConnectTimeout=str(connect_timeout),
            ConnectionAttempts="1",
            ServerAliveInterval=str(_ALIVE_INTERVAL),
            ServerAliveCountMax=str(_ALIVE_COUNT),
            StrictHostKeyChecking="accept-new",
            UserKnownHostsFile=config_path(target.known_hosts),
            HostKeyAlias=target.host_key_alias,
            HashKnownHosts="no",
            UpdateHostKeys="no",
            CheckHostIP="no",
            RemoteCommand="none",
            LogLevel=log_level,
            User=target.user,
        ),
    ]
    if target.port is not None:
        argv += _options(Port=str(target.port))
    if target.key is not None:
        argv += _options(IdentityFile=config_path(target.key), IdentitiesOnly="yes")
    proxy = jump_command(target.jump) if target.jump is not None else target.proxy_command
    if proxy is not None:
        argv += _options(ProxyCommand=_with_stderr_in(proxy, target.proxy_errors))
    return argv


def master_argv(target: SshTarget, *, connect_timeout: int) -> list[str]:
    """The command that opens the shared connection and holds it in the background."""
    return [
        *login_argv(target, connect_timeout=connect_timeout),
        *_options(
            ControlMaster="auto",
            ControlPath=str(target.socket),
            ControlPersist=str(_PERSIST_SECONDS),
            ClearAllForwardings="yes",
        ),
        *["-f", "-N", "-T", "--", target.host],
    ]


def shared_argv(target: SshTarget) -> list[str]:
    """`ssh` over the shared connection; without one it fails immediately."""
    return [
        *_program(target),
        *_options(
            BatchMode="yes",
            ControlMaster="no",
            ControlPath=str(target.socket),
            ProxyCommand="false",
            RemoteCommand="none",
            ClearAllForwardings="yes",
            LogLevel="ERROR",
        ),
    ]


def forwarding_argv(target: SshTarget, forwards: Sequence[PortForward]) -> list[str]:
    """`ssh` with its own connection: forwards on the shared one would stay open after use."""
    return [
        *login_argv(target, connect_timeout=_FORWARD_CONNECT_SECONDS),
        *_options(**_OWN_CONNECTION, ExitOnForwardFailure="yes"),
        *(f"-L127.0.0.1:{forward.local}:localhost:{forward.remote}" for forward in forwards),
    ]


def forwarding_test_argv(target: SshTarget, port: int) -> list[str]:
    """The command that connects to a port of the host through sshd, and prints the answer of sshd
    to its error output: `open confirm`, or `open failed` and the reason."""
    return [
        *login_argv(target, connect_timeout=_FORWARD_CONNECT_SECONDS, log_level="DEBUG2"),
        *_options(**_OWN_CONNECTION, ClearAllForwardings="yes"),
        *("-W", f"localhost:{port}", "--", target.host),
    ]


def control_argv(target: SshTarget, control_command: str) -> list[str]:
    """The command that sends a control command ("exit", "stop", ...) to the ssh process that holds
    the shared connection."""
    return [*shared_argv(target), "-O", control_command, "--", target.host]


def jump_command(jump: SshTarget) -> str:
    """The proxy command that goes through the shared connection of `jump`. It forwards bytes only:
    the login, and the key for it, stay on this machine."""
    escaped = [argument.replace("%", "%%") for argument in shared_argv(jump)]
    return quote([*escaped, "-W", "[%h]:%p", "--", jump.host])


def _with_stderr_in(proxy_command: str, errors: Path) -> str:
    """The proxy command with its error output in a file: ssh discards that of a connection in the
    background."""
    return quote(["sh", "-c", f"exec 2>>{quote([str(errors)])}\n{proxy_command}"])


def _program(target: SshTarget) -> list[str]:
    return ["ssh", *(["-F", str(target.config)] if target.config is not None else [])]


def _options(**values: str) -> list[str]:
    return [argument for name, value in values.items() for argument in ("-o", f"{name}={value}")]


def config_path(path: Path) -> str:
    """A path in the syntax of ssh_config: quoted, with percent signs escaped."""
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
