"""Parses user data as cloud-init does: scripts, the host key and authorized keys."""

from __future__ import annotations

from typing import Any


def parts(text: str) -> list[str]:
    """The parts of user data: of a multipart message, or the text itself."""
    if not text.startswith("Content-Type: multipart/"):
        return [text]
    import email  # imported late: most hosts boot faster without it

    walked = email.message_from_string(text).walk()
    bodies = [part.get_payload(decode=True) for part in walked if not part.is_multipart()]
    return [body.decode() for body in bodies if isinstance(body, bytes)]


def host_key(text: str) -> tuple[str, str] | None:
    """The private and public host key of the cloud-config part."""
    for settings in _cloud_configs(text):
        if keys := settings.get("ssh_keys"):
            return keys["ed25519_private"], keys["ed25519_public"]
    return None


def authorized_keys(text: str) -> list[str]:
    """The public keys that cloud-config authorizes, in addition to the key pair's."""
    return [
        key for config in _cloud_configs(text) for key in config.get("ssh_authorized_keys") or ()
    ]


def _cloud_configs(text: str) -> list[dict[str, Any]]:
    import yaml  # not available in the Python that boots a host

    return [yaml.safe_load(part) for part in parts(text) if part.startswith("#cloud-config")]
