"""One-time SSH host keys, so that an instance is authenticated from the first connection on.

A one-time host key is sent in the user data and pinned locally before the instance exists. User
data stays readable on the instance, so `first_ssh_contact` replaces the key at the first
connection.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from email import message_from_string
from email.message import Message
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from tempfile import TemporaryDirectory

from shoal.core.errors import ShoalError
from shoal.remote.known_hosts import write
from shoal.remote.process import run_process

ONE_TIME_COMMENT = "shoal-one-time"
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class OneTimeKey:
    """A host key that is valid until the first connection."""

    private: str = field(repr=False)
    public: str


async def generate_key() -> OneTimeKey:
    with TemporaryDirectory() as directory:
        file = Path(directory, "key")
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", ONE_TIME_COMMENT]
        done = await run_process([*command, "-f", str(file)], timeout=_TIMEOUT_SECONDS)
        if not done.ok:
            raise ShoalError("ssh-keygen failed on this machine", output=done.tail)
        return await asyncio.to_thread(_read_key, file)


def _read_key(file: Path) -> OneTimeKey:
    return OneTimeKey(file.read_text(), Path(f"{file}.pub").read_text().strip())


def user_data(key: OneTimeKey, *others: str, authorized_keys: Sequence[str] = ()) -> str:
    """User data that sets an instance's first host key and authorizes public keys, combined with
    `others`, such as the user's own."""
    config = (
        "#cloud-config\n"
        "ssh_deletekeys: true\n"
        "ssh_keys:\n"
        "  ed25519_private: |\n"
        f"{textwrap.indent(key.private, '    ')}"
        f"  ed25519_public: {key.public}\n"
    )
    if authorized_keys:
        lines = "".join(f"  - {line.strip()}\n" for line in authorized_keys)
        config += f"ssh_authorized_keys:\n{lines}"
    if not any(others):
        return config
    parts = MIMEMultipart(boundary="shoal-user-data")
    parts.attach(MIMEText(config, "cloud-config", "us-ascii"))
    for other in filter(None, others):
        parts.attach(_mime_part(other))
    return parts.as_string()


def _mime_part(text: str) -> Message:
    """User data as a MIME part. Multipart user data is attached as such: cloud-init would not
    parse it inside a text part."""
    if text.lower().startswith(("mime-version:", "content-type: multipart/")):
        return message_from_string(text)
    return MIMEText(text, _mime_subtype(text), "utf-8")


def _mime_subtype(text: str) -> str:
    """cloud-init's MIME subtype for user data with this beginning."""
    subtypes = {
        "#!": "x-shellscript",
        "#cloud-config": "cloud-config",
        "#include": "x-include-url",
        "#cloud-boothook": "cloud-boothook",
    }
    return next((name for start, name in subtypes.items() if text.startswith(start)), "plain")


def pin(known_hosts: Path, alias: str, public: str, *others: str) -> None:
    """Make these the only accepted host keys of an instance."""
    write(known_hosts, {alias: [public, *others]})
