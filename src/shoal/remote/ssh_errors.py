"""What `ssh` said when it failed, as an error a person can act on.

ssh has one exit code for everything that goes wrong before the command runs, so its words are
all there is. The table below is the one place that knows them.
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
    """The machine that answers is not the one that answered at first contact. Never retried."""

    label = "host key"


class LoginDeniedError(UnreachableError):
    """The machine answers but does not let us in."""

    label = "login"


class Chance(enum.Enum):
    """Whether the same attempt may work later."""

    SOON = "the machine or the network is not ready yet"
    MAYBE = "what installs the key on a new machine may still be at work"
    NEVER = "someone has to change something first"


@dataclass(frozen=True)
class Trouble:
    """One failed attempt: what to tell, and whether to try again."""

    error: ShoalError
    chance: Chance


_Maker = Callable[[str, SshTarget, Sequence[str]], ShoalError]


def diagnose(node: str, target: SshTarget, said: Sequence[str]) -> Trouble:
    """The trouble behind what ssh printed. Words that nobody knows count as a passing failure."""
    text = "\n".join(said)
    for phrases, chance, make in _TABLE:
        if any(phrase in text for phrase in phrases):
            return Trouble(make(node, target, said), chance)
    return Trouble(_unreachable(_last(said))(node, target, said), Chance.SOON)


def _host_key_changed(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    forget = quote(["ssh-keygen", "-R", target.host_key_alias, "-f", str(target.known_hosts)])
    return HostKeyChangedError(
        f"{target} shows another host key than at first contact",
        why="the machine was made anew, or something else answers at its address",
        fix=f"if you know that the machine was made anew: {forget}",
        node=node,
        output=said,
    )


def _denied(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    tried = f"the key {target.key}" if target.key is not None else "your agent and default keys"
    return LoginDeniedError(
        f"{target} refuses the login",
        why=f"it does not accept {tried} for the user {target.user}",
        fix=f"check `auth.ssh_user` and `auth.ssh_private_key`, or try by hand: {_by_hand(target)}",
        node=node,
        output=said,
    )


def _too_many_keys(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    return LoginDeniedError(
        f"{target} ended the login after too many keys",
        why="your agent offered several keys and the right one was not among the first",
        fix="name the right one in `auth.ssh_private_key`",
        node=node,
        output=said,
    )


def _key_is_open(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"ssh refuses to use the key {target.key}",
        why="other users of this machine can read it",
        fix=f"chmod 600 {quote([str(target.key)])}",
        node=node,
    )


def _key_unusable(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        f"ssh cannot use the key {target.key}",
        why="it is not a private key, or it needs its passphrase",
        fix=f"ssh-add {quote([str(target.key)])}",
        node=node,
        output=said,
    )


def _bad_client_config(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    return ConfigError(
        "ssh does not accept its configuration",
        why=_last(said),
        fix=f"correct {target.config or '~/.ssh/config'}",
        node=node,
        output=said,
    )


def _no_common_algorithm(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    return SetupError(
        f"{target} and this machine's ssh have no algorithm in common",
        why=_last(said),
        fix="allow one in ~/.ssh/config for this host, or update its sshd",
        node=node,
        output=said,
    )


def _beyond_the_jump(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
    # Whether it tried and failed or did not want to try, only the machine in between knows.
    return UnreachableError(
        f"no connection to {target} through {target.jump}",
        why="it is not up yet, a firewall is between them, or connections may not pass there",
        fix=f"check the address, and AllowTcpForwarding in the sshd_config of {target.jump}",
        node=node,
        output=said,
    )


def _unreachable(why: str, fix: str = "") -> _Maker:
    def make(node: str, target: SshTarget, said: Sequence[str]) -> ShoalError:
        return UnreachableError(
            f"no connection to {target}",
            why=why,
            fix=fix or f"check the address and its firewall, or try by hand: {_by_hand(target)}",
            node=node,
            output=said,
        )

    return make


# What docker and podman say of a container that is not there, or not running.
_GONE = ("no such container", "is not running", "container state improper")


def is_gone(said: Sequence[str]) -> bool:
    """Whether an engine says that a container cannot be entered because it is not running."""
    text = "\n".join(said).lower()
    return any(phrase in text for phrase in _GONE)


def no_way_in(node: str, container: Container, said: Sequence[str]) -> SetupError:
    """Why nothing can be run in a container, from what its engine said."""
    if is_gone(said):
        return SetupError(
            f"the {container} is not running",
            why="it ended, was removed, or was never made",
            fix="shoal up brings it back; --run-env host reaches the machine itself",
            node=node,
            output=said,
        )
    if any("executable file" in line and "bash" in line for line in said):
        return SetupError(
            f"the {container} has no bash",
            why="commands of a cluster file are written for it",
            fix="install bash in the image",
            node=node,
            output=said,
        )
    return SetupError(
        f"the {container} cannot be entered",
        why=_last(said),
        fix=f"try by hand, on the machine: {quote([*container.exec_argv(tty=True), 'bash'])}",
        node=node,
        output=said,
    )


# The first row with a phrase that was printed decides: ssh reports a bad key file and then, as a
# consequence, a refused login, so causes stand before consequences.
_TABLE: tuple[tuple[tuple[str, ...], Chance, _Maker], ...] = (
    (
        ("REMOTE HOST IDENTIFICATION HAS CHANGED", "Host key verification failed"),
        Chance.NEVER,
        _host_key_changed,
    ),
    (("UNPROTECTED PRIVATE KEY FILE",), Chance.NEVER, _key_is_open),
    (
        ("Bad configuration option", "Bad owner or permissions", "bad configuration options"),
        Chance.NEVER,
        _bad_client_config,
    ),
    (
        ("no matching host key type", "no matching key exchange", "no matching cipher"),
        Chance.NEVER,
        _no_common_algorithm,
    ),
    (("Too many authentication failures",), Chance.NEVER, _too_many_keys),
    (
        ("invalid format", "error in libcrypto", "incorrect passphrase"),
        Chance.NEVER,
        _key_unusable,
    ),
    # A machine that still boots says so and closes the connection.
    (("System is booting up", "pam_nologin"), Chance.SOON, _unreachable("it is still booting")),
    (("Permission denied",), Chance.MAYBE, _denied),
    (("Stdio forwarding request failed",), Chance.SOON, _beyond_the_jump),
    (
        ("Temporary failure in name resolution",),
        Chance.SOON,
        _unreachable("its name cannot be looked up just now", "check the network of this machine"),
    ),
    (
        ("Could not resolve hostname",),
        Chance.NEVER,
        _unreachable("no such host name is known", "correct the address in the cluster's file"),
    ),
    (("Connection refused",), Chance.SOON, _unreachable("nothing listens there")),
    (
        ("timed out", "Timeout, server"),
        Chance.SOON,
        _unreachable("it does not answer"),
    ),
    (
        ("No route to host", "Network is unreachable", "Host is down"),
        Chance.SOON,
        _unreachable("there is no way to it from here"),
    ),
)


def _last(said: Sequence[str]) -> str:
    return next((line for line in reversed(said) if line.strip()), "ssh gave no reason")


def _by_hand(target: SshTarget) -> str:
    argv = ["ssh", "-v"]
    if target.key is not None:
        argv += ["-i", str(target.key)]
    if target.port is not None:
        argv += ["-p", str(target.port)]
    if target.proxy_command is not None:
        argv += ["-o", f"ProxyCommand={target.proxy_command}"]
    if target.jump is not None:
        argv += ["-J", str(target.jump)]
    return quote([*argv, f"{target.user}@{target.host}"])
