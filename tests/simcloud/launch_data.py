"""What cloud-init makes of an instance's user data: scripts to run, and a host key to have."""

from __future__ import annotations

from typing import Any


def parts(text: str) -> list[str]:
    """The launch data as cloud-init takes it: as it stands, or as a message of several parts."""
    if not text.startswith("Content-Type: multipart/"):
        return [text]
    import email  # most machines have no use for it, and boot sooner without

    walked = email.message_from_string(text).walk()
    bodies = [part.get_payload(decode=True) for part in walked if not part.is_multipart()]
    return [body.decode() for body in bodies if isinstance(body, bytes)]


def host_key(text: str) -> tuple[str, str] | None:
    """The private and public host key that cloud-config brings, for sshd's first start."""
    for settings in _cloud_configs(text):
        if keys := settings.get("ssh_keys"):
            return keys["ed25519_private"], keys["ed25519_public"]
    return None


def authorized_keys(text: str) -> list[str]:
    """The public keys that cloud-config lets in, beside that of the key pair."""
    return [key for one in _cloud_configs(text) for key in one.get("ssh_authorized_keys") or ()]


def _cloud_configs(text: str) -> list[dict[str, Any]]:
    import yaml  # not there in the Python that boots a machine

    return [yaml.safe_load(part) for part in parts(text) if part.startswith("#cloud-config")]
