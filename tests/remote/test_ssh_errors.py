"""What ssh says, in the words of its versions, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, SetupError, ShoalError, UnreachableError
from shoal.remote.ssh_errors import Chance, HostKeyChangedError, LoginDeniedError, diagnose
from shoal.remote.ssh_target import SshTarget

TARGET = SshTarget(
    host="10.0.0.7",
    user="ubuntu",
    key=Path("/home/me/my key.pem"),
    known_hosts=Path("/home/me/.shoal/demo/known_hosts"),
    host_key_alias="demo-head",
    control_dir=Path("/tmp/x"),
)

SAID = [
    ("ssh: connect to host 10.0.0.7 port 22: Connection refused", Chance.SOON, UnreachableError),
    ("ssh: connect to host 10.0.0.7 port 22: Connection timed out", Chance.SOON, UnreachableError),
    ("ssh: connect to host 10.0.0.7 port 22: Operation timed out", Chance.SOON, UnreachableError),
    ("ssh: connect to host 10.0.0.7 port 22: No route to host", Chance.SOON, UnreachableError),
    ("Connection timed out during banner exchange", Chance.SOON, UnreachableError),
    (
        "kex_exchange_identification: Connection closed by remote host",
        Chance.SOON,
        UnreachableError,
    ),
    ("kex_exchange_identification: read: Connection reset by peer", Chance.SOON, UnreachableError),
    ("Connection closed by UNKNOWN port 65535", Chance.SOON, UnreachableError),
    (
        '"System is booting up. Unprivileged users are not permitted to log in yet."\n'
        "Connection closed by 10.0.0.7 port 22",
        Chance.SOON,
        UnreachableError,
    ),
    (
        "ssh: Could not resolve hostname h: Temporary failure in name resolution",
        Chance.SOON,
        UnreachableError,
    ),
    (
        "ssh: Could not resolve hostname h: Name or service not known",
        Chance.NEVER,
        UnreachableError,
    ),
    (
        "ssh: Could not resolve hostname h: nodename nor servname provided, or not known",
        Chance.NEVER,
        UnreachableError,
    ),
    ("ubuntu@10.0.0.7: Permission denied (publickey).", Chance.MAYBE, LoginDeniedError),
    (
        "Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures",
        Chance.NEVER,
        LoginDeniedError,
    ),
    (
        "@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\n"
        "ubuntu@10.0.0.7: Permission denied (publickey).",
        Chance.NEVER,
        ConfigError,
    ),
    (
        'Load key "/home/me/my key.pem": error in libcrypto\n'
        "ubuntu@10.0.0.7: Permission denied (publickey).",
        Chance.NEVER,
        ConfigError,
    ),
    (
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        "Host key verification failed.",
        Chance.NEVER,
        HostKeyChangedError,
    ),
    (
        "/home/me/.ssh/config: line 3: Bad configuration option: hostnam",
        Chance.NEVER,
        ConfigError,
    ),
    (
        "Unable to negotiate with 10.0.0.7 port 22: no matching host key type found.",
        Chance.NEVER,
        SetupError,
    ),
]


@pytest.mark.parametrize(("said", "chance", "kind"), SAID)
def test_words_become_an_error_and_a_chance(
    said: str, chance: Chance, kind: type[ShoalError]
) -> None:
    trouble = diagnose("head", TARGET, said.splitlines())
    assert type(trouble.error) is kind
    assert trouble.chance is chance
    assert trouble.error.why
    assert trouble.error.fix
    assert trouble.error.node == "head"


def test_words_that_nobody_knows_are_passed_on() -> None:
    trouble = diagnose("head", TARGET, ["something quite new", ""])
    assert "something quite new" in str(trouble.error)


def test_silence_is_an_error_too() -> None:
    assert "gave no reason" in str(diagnose("head", TARGET, []).error)


def test_the_fix_can_be_pasted_into_a_shell() -> None:
    denied = diagnose("head", TARGET, ["Permission denied (publickey)."]).error
    assert "ssh -v -i '/home/me/my key.pem' ubuntu@10.0.0.7" in denied.fix
