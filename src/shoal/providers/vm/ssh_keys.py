"""The SSH key with which the launching user logs in to instances: the file's, or Shoal's own,
generated on this machine, which it never leaves."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.remote.process import run_process
from shoal.spec.cluster_spec import AuthSpec

_log = logging.getLogger(__name__)

# In ~/.ssh, not in a cache: the key is needed for as long as instances know it.
_DEFAULT_KEY = Path("~/.ssh/shoal_ed25519")
_TIMEOUT_SECONDS = 30.0


def private_key_path(auth: AuthSpec) -> Path:
    """The key to log in with where no key pair is named: the file's, or Shoal's own."""
    return Path(auth.ssh_private_key or _DEFAULT_KEY).expanduser()


async def public_key(auth: AuthSpec) -> str:
    """The public key, as a line of authorized_keys. Generates Shoal's own key if it is missing."""
    key = private_key_path(auth)
    if auth.ssh_private_key is None and not key.exists():
        await _generate(key)
    public_file = _public_key_path(auth)
    if public_file.is_file():
        return public_file.read_text()
    done = await run_process(
        ["ssh-keygen", "-y", "-P", "", "-f", str(key)], timeout=_TIMEOUT_SECONDS
    )
    if not done.ok or not done.tail:
        raise ConfigError(
            f"could not read the public key of {key}",
            why=done.tail[-1] if done.tail else "ssh-keygen printed nothing",
            fix=f"write it to a file next to the key: ssh-keygen -y -f {key} > {key}.pub",
        )
    return done.tail[-1]


def _public_key_path(auth: AuthSpec) -> Path:
    return Path(auth.ssh_public_key or f"{private_key_path(auth)}.pub").expanduser()


async def _generate(key: Path) -> None:
    """Generate a key atomically. If two programs do so at once, both end up with the same one."""
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = key.with_name(f"{key.name}.{os.getpid()}")
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "shoal", "-f", str(draft)]
    done = await run_process(command, timeout=_TIMEOUT_SECONDS)
    if not done.ok:
        raise ConfigError(
            f"could not generate a key at {key}",
            why=done.tail[-1] if done.tail else "ssh-keygen failed",
            fix="name an existing key: auth: {ssh_private_key: ~/.ssh/id_ed25519}",
        )
    _log.info("generated %s", key)
    await asyncio.to_thread(_publish, draft, key)


def _publish(draft: Path, key: Path) -> None:
    try:
        os.link(draft, key)
        Path(f"{draft}.pub").replace(f"{key}.pub")
    except FileExistsError:
        Path(f"{draft}.pub").unlink()
    draft.unlink()
