"""The key pair that lets the launching user log in to a cluster's instances.

The private key is generated on this machine and never leaves it; AWS gets the public key. Several
laptops may launch into one cluster, each with its own key pair, which the pair's name identifies.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.providers.aws import tags
from shoal.providers.aws.aws_client import AwsClient
from shoal.remote.process import run_process
from shoal.spec.cluster_spec import AuthSpec

_log = logging.getLogger(__name__)

# In ~/.ssh, not in a cache: the key is needed for as long as instances know it.
_DEFAULT_KEY = Path("~/.ssh/shoal_ed25519")
_TIMEOUT_SECONDS = 30.0

# The error code of RunInstances for a key pair that was created a moment ago.
NOT_PROPAGATED = "InvalidKeyPair.NotFound"


def private_key_path(auth: AuthSpec) -> Path:
    """The key to log in with where no key pair is named: the file's, or Shoal's own."""
    return Path(auth.ssh_private_key or _DEFAULT_KEY).expanduser()


async def ensure_key_pair(
    aws: AwsClient, cluster: str, auth: AuthSpec, own_tags: Mapping[str, str]
) -> str:
    """Import the public key into EC2 if it is missing, and return the key pair's name."""
    public = await public_key(auth)
    algorithm, body = public.split()[:2]
    digest = hashlib.sha256(body.encode()).hexdigest()[:8]
    name = tags.resource_name(cluster, digest)
    await aws.call(
        "ec2",
        "import_key_pair",
        ignore_codes=("InvalidKeyPair.Duplicate",),
        KeyName=name,
        PublicKeyMaterial=f"{algorithm} {body}".encode(),
        TagSpecifications=tags.tag_specifications("key-pair", tags.cluster_tags(cluster, own_tags)),
    )
    return name


async def delete_key_pairs(aws: AwsClient, cluster: str) -> list[str]:
    """Delete the key pairs of all laptops that launched into the cluster. The private keys stay."""
    response = await aws.call("ec2", "describe_key_pairs", Filters=tags.cluster_filter(cluster))
    for pair in response["KeyPairs"]:
        await aws.call("ec2", "delete_key_pair", KeyName=pair["KeyName"])
    return [f"key pair {pair['KeyName']}" for pair in response["KeyPairs"]]


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
