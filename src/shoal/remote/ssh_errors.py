"""Turns the output of a failed `ssh` into an error that a user can act on.

ssh has one exit code for everything that fails before the command runs, so its messages are all
there is. The table below is the only place that knows them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.core.errors import ConfigError, SetupError, ShoalError, UnreachableError
from shoal.remote.container import Container
from shoal.remote.runner import quote
from shoal.remote.ssh_target import SshTarget


class HostKeyChangedError(UnreachableError):
    """The host key differs from the pinned one. Never retried."""

    label = "host key"


class LoginDeniedError(UnreachableError):
    """The host answers but rejects the login."""

    label = "login"


class Retry(enum.Enum):
    """Whether another attempt may succeed."""

    UNTIL_DEADLINE = "the host or the network is not ready yet"
    BRIEFLY = "a new host may not have installed the key yet"
    NEVER = "the user has to change something first"


@dataclass(frozen=True)
class SshFailure:
    """One failed attempt: its error, and whether to try again."""

    error: ShoalError
    retry: Retry


_ErrorFactory = Callable[[str, SshTarget, Sequence[str]], ShoalError]


def classify(node: str, target: SshTarget, output: Sequence[str]) -> SshFailure:
    """The failure that the output of ssh describes. Unknown messages count as temporary."""
    text = "\n".join(output)
    for phrases, retry, make_error in _TABLE:
        if any(phrase in text for phrase in phrases):
            return SshFailure(make_error(node, target, output), retry)
    error = _unreachable(_last_line(output))(node, target, output)
    return SshFailure(error, Retry.UNTIL_DEADLINE)


def _host_key_changed(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    forget = quote(["ssh-keygen", "-R", target.host_key_alias, "-f", str(target.known_hosts)])
    return HostKeyChangedError(
        f"the host key of {target} has changed",
        why="the host was reinstalled, or another host answers at its address",
        fix=f"if you know that the host was reinstalled: {forget}",
        node=node,
        output=output,
    )


def _denied(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    keys = f"the key {target.key}" if target.key is not None else "your agent and default keys"
    return LoginDeniedError(
        f"{target} rejected the login",
        why=f"it does not accept {keys} for the user {target.user}",
        fix="check `auth.ssh_user` and `auth.ssh_private_key`, or log in yourself: "
        f"{login_command(target)}",
        node=node,
        output=output,
    )


def _too_many_keys(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    return LoginDeniedError(
        f"{target} ended the login after too many keys",
        why="your agent offered several keys and the right one was not among the first",
        fix="set `auth.ssh_private_key` to the right key",
        node=node,
        output=output,
    )


def _key_is_open(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"ssh refuses to use the key {target.key}",
        why="other users of this machine can read it",
        fix=f"chmod 600 {quote([str(target.key)])}",
        node=node,
    )


def _key_unusable(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"ssh cannot use the key {target.key}",
        why="it is not a private key, or it needs its passphrase",
        fix=f"ssh-add {quote([str(target.key)])}",
        node=node,
        output=output,
    )


def _bad_client_config(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    return ConfigError(
        "ssh rejects its configuration file",
        why=_last_line(output),
        fix=f"correct {target.config or '~/.ssh/config'}",
        node=node,
        output=output,
    )


def _no_common_algorithm(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    return SetupError(
        f"{target} and this machine's ssh have no algorithm in common",
        why=_last_line(output),
        fix="allow one in ~/.ssh/config for this host, or update its sshd",
        node=node,
        output=output,
    )


def _jump_failed(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
    # Only the jump host knows whether it failed to connect or does not allow forwarding.
    return UnreachableError(
        f"no connection to {target} through {target.jump}",
        why="it is not up yet, a firewall blocks it, or the jump host does not forward",
        fix=f"check the address, and AllowTcpForwarding in the sshd_config of {target.jump}",
        node=node,
        output=output,
    )


def _unreachable(why: str, fix: str = "") -> _ErrorFactory:
    def make_error(node: str, target: SshTarget, output: Sequence[str]) -> ShoalError:
        return UnreachableError(
            f"no connection to {target}",
            why=why,
            fix=fix
            or f"check the address and its firewall, or log in yourself: {login_command(target)}",
            node=node,
            output=output,
        )

    return make_error


# What docker and podman print if a container does not exist or does not run.
_CONTAINER_DOWN = ("no such container", "is not running", "container state improper")


def is_container_down(output: Sequence[str]) -> bool:
    """Whether a container runtime says that the container does not run."""
    text = "\n".join(output).lower()
    return any(phrase in text for phrase in _CONTAINER_DOWN)


def container_exec_error(node: str, container: Container, output: Sequence[str]) -> SetupError:
    """Why a command cannot run in a container, from the output of its runtime."""
    if is_container_down(output):
        return SetupError(
            f"the {container} is not running",
            why="it exited, was removed, or was never created",
            fix="restore it: shoal up CLUSTER\nor run the command on the host: add --run-env host",
            node=node,
            output=output,
        )
    if any("executable file" in line and "bash" in line for line in output):
        return SetupError(
            f"the {container} has no bash",
            why="the commands of a cluster file are bash commands",
            fix="install bash in the image",
            node=node,
            output=output,
        )
    return SetupError(
        f"could not run a command in the {container}",
        why=_last_line(output),
        fix=f"try it yourself, on the host: {quote([*container.exec_argv(tty=True), 'bash'])}",
        node=node,
        output=output,
    )


# The first row with a phrase in the output decides. ssh reports a bad key file and then, as a
# consequence, a rejected login, so causes come before consequences.
_TABLE: tuple[tuple[tuple[str, ...], Retry, _ErrorFactory], ...] = (
    (
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key verification failed"),
        Retry.NEVER,
        _host_key_changed,
    ),
    (("UNPROTECTED PRIVATE KEY FILE",), Retry.NEVER, _key_is_open),
    (
        ("Bad configuration option", "Bad owner or permissions", "bad configuration options"),
        Retry.NEVER,
        _bad_client_config,
    ),
    (
        ("no matching host key type", "no matching key exchange", "no matching cipher"),
        Retry.NEVER,
        _no_common_algorithm,
    ),
    (("Too many authentication failures",), Retry.NEVER, _too_many_keys),
    (
        ("invalid format", "error in libcrypto", "incorrect passphrase"),
        Retry.NEVER,
        _key_unusable,
    ),
    # A booting host says so and closes the connection.
    (
        ("System is booting up", "pam_nologin"),
        Retry.UNTIL_DEADLINE,
        _unreachable("it is still booting"),
    ),
    (("Permission denied",), Retry.BRIEFLY, _denied),
    (("Stdio forwarding request failed",), Retry.UNTIL_DEADLINE, _jump_failed),
    (
        ("Temporary failure in name resolution",),
        Retry.UNTIL_DEADLINE,
        _unreachable(
            "its name cannot be resolved at the moment", "check the network of this machine"
        ),
    ),
    (
        ("Could not resolve hostname",),
        Retry.NEVER,
        _unreachable("the host name is unknown", "correct the address in the cluster's file"),
    ),
    (
        ("Connection refused",),
        Retry.UNTIL_DEADLINE,
        _unreachable("the connection was refused: no SSH server listens there"),
    ),
    (("timed out", "Timeout, server"), Retry.UNTIL_DEADLINE, _unreachable("it does not answer")),
    (
        ("No route to host", "Network is unreachable", "Host is down"),
        Retry.UNTIL_DEADLINE,
        _unreachable("there is no route to it"),
    ),
)


def _last_line(output: Sequence[str]) -> str:
    return next((line for line in reversed(output) if line.strip()), "ssh gave no reason")


def login_command(target: SshTarget, *command: str) -> str:
    """What a user can paste to log in, or to run a command there."""
    argv = ["ssh"] if command else ["ssh", "-v"]
    if target.key is not None:
        argv += ["-i", str(target.key)]
    if target.port is not None:
        argv += ["-p", str(target.port)]
    if target.proxy_command is not None:
        argv += ["-o", f"ProxyCommand={target.proxy_command}"]
    if target.jump is not None:
        argv += ["-J", str(target.jump)]
    return quote([*argv, f"{target.user}@{target.host}", *command])
