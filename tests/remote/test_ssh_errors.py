"""The messages of several versions of ssh, and the errors that they become."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, SetupError, ShoalError, UnreachableError
from shoal.remote.ssh_errors import HostKeyChangedError, LoginDeniedError, Retry, classify
from shoal.remote.ssh_target import SshTarget

TARGET = SshTarget(
    host="10.0.0.7",
    user="ubuntu",
    key=Path("/home/me/my key.pem"),
    known_hosts=Path("/home/me/.shoal/demo/known_hosts"),
    host_key_alias="demo-head",
    control_dir=Path("/tmp/x"),
)

OUTPUTS = [
    (
        "ssh: connect to host 10.0.0.7 port 22: Connection refused",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    (
        "ssh: connect to host 10.0.0.7 port 22: Connection timed out",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    (
        "ssh: connect to host 10.0.0.7 port 22: Operation timed out",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    (
        "ssh: connect to host 10.0.0.7 port 22: No route to host",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    ("Connection timed out during banner exchange", Retry.UNTIL_DEADLINE, UnreachableError),
    (
        "kex_exchange_identification: Connection closed by remote host",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    (
        "kex_exchange_identification: read: Connection reset by peer",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    ("Connection closed by UNKNOWN port 65535", Retry.UNTIL_DEADLINE, UnreachableError),
    (
        '"System is booting up. Unprivileged users are not permitted to log in yet."\n'
        "Connection closed by 10.0.0.7 port 22",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    (
        "ssh: Could not resolve hostname h: Temporary failure in name resolution",
        Retry.UNTIL_DEADLINE,
        UnreachableError,
    ),
    (
        "ssh: Could not resolve hostname h: Name or service not known",
        Retry.NEVER,
        UnreachableError,
    ),
    (
        "ssh: Could not resolve hostname h: nodename nor servname provided, or not known",
        Retry.NEVER,
        UnreachableError,
    ),
    ("ubuntu@10.0.0.7: Permission denied (publickey).", Retry.BRIEFLY, LoginDeniedError),
    (
        "Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures",
        Retry.NEVER,
        LoginDeniedError,
    ),
    (
        "@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\n"
        "ubuntu@10.0.0.7: Permission denied (publickey).",
        Retry.NEVER,
        ConfigError,
    ),
    (
        'Load key "/home/me/my key.pem": error in libcrypto\n'
        "ubuntu@10.0.0.7: Permission denied (publickey).",
        Retry.NEVER,
        ConfigError,
    ),
    (
        "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
        "Host key verification failed.",
        Retry.NEVER,
        HostKeyChangedError,
    ),
    (
        "/home/me/.ssh/config: line 3: Bad configuration option: hostnam",
        Retry.NEVER,
        ConfigError,
    ),
    (
        "Unable to negotiate with 10.0.0.7 port 22: no matching host key type found.",
        Retry.NEVER,
        SetupError,
    ),
]


@pytest.mark.parametrize(("output", "retry", "error_type"), OUTPUTS)
def test_a_message_becomes_an_error_and_a_retry_policy(
    output: str, retry: Retry, error_type: type[ShoalError]
) -> None:
    failure = classify("head", TARGET, output.splitlines())
    assert type(failure.error) is error_type
    assert failure.retry is retry
    assert failure.error.why
    assert failure.error.fix
    assert failure.error.node == "head"


def test_an_unknown_message_is_part_of_the_error() -> None:
    failure = classify("head", TARGET, ["an unknown message", ""])
    assert "an unknown message" in str(failure.error)


def test_no_output_is_an_error_too() -> None:
    assert "gave no reason" in str(classify("head", TARGET, []).error)


def test_the_fix_can_be_pasted_into_a_shell() -> None:
    denied = classify("head", TARGET, ["Permission denied (publickey)."]).error
    assert "ssh -v -i '/home/me/my key.pem' ubuntu@10.0.0.7" in denied.fix
