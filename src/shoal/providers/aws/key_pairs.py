"""The key that opens a cluster's machines to the person who launched them.

The private half is made on this machine and never leaves it; AWS is given the public half. All
laptops may launch into the same cluster, each with a key of its own: the pair's name says which.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

from shoal.core.errors import ConfigError
from shoal.providers.aws import tags
from shoal.providers.aws.client import AwsClient
from shoal.remote.process import run_process
from shoal.spec.cluster_spec import AuthSpec

# Beside the person's other keys: it must survive a cleared cache as long as machines know it.
_OWN_KEY = Path("~/.ssh/shoal_ed25519")
_SECONDS = 30.0

# What RunInstances says of a pair that was made a moment ago.
NOT_KNOWN_YET = "InvalidKeyPair.NotFound"


def private_key(auth: AuthSpec) -> Path:
    """The key to log in with where no key pair is named: the file's, or one of our own."""
    return Path(auth.ssh_private_key or _OWN_KEY).expanduser()


async def ensure(aws: AwsClient, cluster: str, auth: AuthSpec) -> str:
    """Have AWS know the public half, and return the pair's name."""
    public = await public_half(auth)
    kind, body = public.split()[:2]
    digest = hashlib.sha256(body.encode()).hexdigest()[:8]
    name = tags.name_for(cluster, digest)
    await aws.call(
        "ec2",
        "import_key_pair",
        ignoring=("InvalidKeyPair.Duplicate",),
        KeyName=name,
        PublicKeyMaterial=f"{kind} {body}".encode(),
        TagSpecifications=tags.at_creation("key-pair", tags.ownership(cluster)),
    )
    return name


async def remove(aws: AwsClient, cluster: str) -> list[str]:
    """Have AWS forget the keys of all who launched into the cluster. The private halves stay
    where they are."""
    answer = await aws.call("ec2", "describe_key_pairs", Filters=tags.of_cluster(cluster))
    for pair in answer["KeyPairs"]:
        await aws.call("ec2", "delete_key_pair", KeyName=pair["KeyName"])
    return [f"key pair {pair['KeyName']}" for pair in answer["KeyPairs"]]


async def public_half(auth: AuthSpec) -> str:
    """The line that lets this key's owner in."""
    key = private_key(auth)
    if auth.ssh_private_key is None and not key.exists():
        await _make(key)
    beside = _public_file(auth)
    if beside.is_file():
        return beside.read_text()
    done = await run_process(["ssh-keygen", "-y", "-P", "", "-f", str(key)], timeout=_SECONDS)
    if not done.ok or not done.tail:
        raise ConfigError(
            f"the public half of {key} cannot be had",
            why=done.tail[-1] if done.tail else "ssh-keygen printed nothing",
            fix=f"write it beside the key: ssh-keygen -y -f {key} > {key}.pub",
        )
    return done.tail[-1]


def _public_file(auth: AuthSpec) -> Path:
    return Path(auth.ssh_public_key or f"{private_key(auth)}.pub").expanduser()


async def _make(key: Path) -> None:
    """A new key, there as a whole or not at all, and only one when two programs make it."""
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = key.with_name(f"{key.name}.{os.getpid()}")
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "shoal", "-f", str(draft)]
    done = await run_process(words, timeout=_SECONDS)
    if not done.ok:
        raise ConfigError(
            f"no key could be made at {key}",
            why=done.tail[-1] if done.tail else "ssh-keygen failed",
            fix="name a key of your own: auth: {ssh_private_key: ~/.ssh/id_ed25519}",
        )
    await asyncio.to_thread(_publish, draft, key)


def _publish(draft: Path, key: Path) -> None:
    try:
        os.link(draft, key)
        Path(f"{draft}.pub").replace(f"{key}.pub")
    except FileExistsError:
        Path(f"{draft}.pub").unlink()
    draft.unlink()
