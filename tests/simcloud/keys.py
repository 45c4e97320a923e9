"""SSH keys, made in memory: a cloud leaves no files on the computer it runs on."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519


@dataclass(frozen=True)
class SshKey:
    """A key pair in OpenSSH's own formats."""

    private: str
    public: str


def new_key(comment: str) -> SshKey:
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return SshKey(private.decode(), f"{public.decode()} {comment}")
