"""What cloud-init makes of an instance's user data: scripts to run, and a host key to have."""

from __future__ import annotations


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
    import yaml  # not there in the Python that boots a machine

    for part in parts(text):
        settings = yaml.safe_load(part) if part.startswith("#cloud-config") else {}
        if keys := settings.get("ssh_keys"):
            return keys["ed25519_private"], keys["ed25519_public"]
    return None
