"""Checks the file of a private key before ssh reads it: ssh's own messages do not say what is wrong
with a file that is no private key."""

from __future__ import annotations

from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.remote.runner import quote

_PUBLIC_KEY_STARTS = (b"ssh-", b"ecdsa-sha2-", b"sk-ssh-", b"sk-ecdsa-", b"---- BEGIN SSH2 PUBLIC")
_PUTTY_START = b"PuTTY-User-Key-File"


def private_key_problem(key: Path) -> ConfigError | None:
    """Why this file cannot be a private key for ssh; None if it can be one."""
    try:
        with key.open("rb") as file:
            start = file.read(64).lstrip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ConfigError(
            f"the key {key} does not exist",
            why="`auth.ssh_private_key` in the cluster's file names it",
            fix="correct the path, or leave it out to use your SSH agent and defaults",
        )
    except OSError as error:
        return ConfigError(
            f"the key {key} cannot be read",
            why=error.strerror or str(error),
            fix=quote(["ls", "-l", str(key)]) + " shows who may read it",
        )
    if start.startswith(_PUBLIC_KEY_STARTS):
        private = key.with_suffix("") if key.suffix == ".pub" else None
        return ConfigError(
            f"the key {key} is a public key",
            why="a login needs the private key",
            fix=f"auth: {{ssh_private_key: {private}}} in the cluster's file"
            if private is not None
            else "name the file with the private key in auth.ssh_private_key",
        )
    if start.startswith(_PUTTY_START):
        converted = key.with_suffix(".openssh")
        convert = ["puttygen", str(key), "-O", "private-openssh", "-o", str(converted)]
        return ConfigError(
            f"the key {key} is in PuTTY's format",
            why="OpenSSH cannot read it",
            fix=f"{quote(convert)}, and name {converted} in auth.ssh_private_key",
        )
    return None
