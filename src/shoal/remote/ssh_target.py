"""Where a machine is and how to log in to it, and what that means as arguments of `ssh`.

Everything here is the system's own OpenSSH client, so that the user's agent, configuration,
jump hosts and hardware keys work as they do in a terminal. Nothing here starts a process.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.remote.runner import PortForward, quote

# A Unix socket's address holds 104 bytes on macOS and 108 on Linux, the closing NUL included.
# While a master starts, ssh listens at the path plus a dot and sixteen characters.
_SOCKET_PATH_LIMIT = 104 - 1 - 17

# A connection without use ends after this long: a person's pause between two commands.
_PERSIST_SECONDS = 600

# A silent peer is given up after fifteen seconds, here and on every connection to it.
_ALIVE_INTERVAL = 5
_ALIVE_COUNT = 3

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class SshTarget:
    """One machine to log in to.

    Its host key is pinned in `known_hosts` under `host_key_alias`, not under its address, which
    other machines had before and will have again. `control_dir` holds the sockets of open
    connections. `proxy_command` means what it means in ssh_config(5); `jump` is a machine that
    can reach this one when we cannot. What is None is left to the user's ssh configuration, for
    which `config` stands in where given.
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
            raise ValueError(f"not a name that a known_hosts file can hold: {self.host_key_alias}")
        if self.proxy_command is not None and self.jump is not None:
            raise ValueError("a machine is reached by a proxy command or by a jump, not by both")

    @property
    def socket(self) -> Path:
        """Where the shared connection listens. Two targets that differ in anything differ here."""
        return self.control_dir / hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def proxy_errors(self) -> Path:
        """Where the proxy command's complaints go."""
        return self.socket.with_suffix(".proxy")

    def __str__(self) -> str:
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port is not None else "")


def control_directory() -> Path:
    """The usual `control_dir`: short, whatever HOME is, and one per user."""
    return Path("/tmp") / f"shoal-{os.getuid()}"


def prepare_control_directory(directory: Path) -> None:
    """Make the directory for the sockets, or refuse one that others could tamper with."""
    if len(os.fsencode(directory / ("x" * 16))) > _SOCKET_PATH_LIMIT:
        raise ConfigError(
            f"the directory {directory} is no place for connection sockets",
            why="a socket's path may have about a hundred characters",
            fix="choose a shorter directory",
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or directory.is_symlink():
        raise ConfigError(
            f"the directory {directory} is open to others",
            why="whoever can write there can run commands over our connections",
            fix=f"look at it, then: {quote(['rm', '-r', str(directory)])}",
        )


def login_argv(target: SshTarget, *, connect_timeout: int) -> list[str]:
    """`ssh` and the options of a new connection, up to but without the host's name."""
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
            LogLevel="ERROR",
            User=target.user,
        ),
    ]
    if target.port is not None:
        argv += _options(Port=str(target.port))
    if target.key is not None:
        argv += _options(IdentityFile=config_path(target.key), IdentitiesOnly="yes")
    proxy = jump_command(target.jump) if target.jump is not None else target.proxy_command
    if proxy is not None:
        argv += _options(ProxyCommand=_audible(proxy, target.proxy_errors))
    return argv


def master_argv(target: SshTarget, *, connect_timeout: int) -> list[str]:
    """The command that opens the shared connection and goes to the background with it."""
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
    """`ssh` over the shared connection and nothing else: without one it fails, at once."""
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
    """`ssh` with a connection of its own: forwards on a shared one would outlive their user."""
    return [
        *login_argv(target, connect_timeout=30),
        *_options(ControlMaster="no", ControlPath="none", ExitOnForwardFailure="yes"),
        *(f"-L127.0.0.1:{forward.local}:localhost:{forward.remote}" for forward in forwards),
    ]


def control_argv(target: SshTarget, verb: str) -> list[str]:
    """The command that says `verb` ("check", "exit", ...) to the shared connection's holder."""
    return [*shared_argv(target), "-O", verb, "--", target.host]


def jump_command(jump: SshTarget) -> str:
    """The proxy command that leads through `jump`'s shared connection. Only bytes pass there:
    the login, and the key for it, stay at this end."""
    escaped = [argument.replace("%", "%%") for argument in shared_argv(jump)]
    return quote([*escaped, "-W", "[%h]:%p", "--", jump.host])


def _audible(proxy_command: str, errors: Path) -> str:
    """A proxy command whose reasons for failing can be read: a connection that goes to the
    background silences its proxy."""
    return quote(["sh", "-c", f"exec 2>>{quote([str(errors)])}\n{proxy_command}"])


def _program(target: SshTarget) -> list[str]:
    return ["ssh", *(["-F", str(target.config)] if target.config is not None else [])]


def _options(**values: str) -> list[str]:
    return [word for name, value in values.items() for word in ("-o", f"{name}={value}")]


def config_path(path: Path) -> str:
    """A path as ssh_config reads it: one word, with no percent sign taken for a token."""
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
