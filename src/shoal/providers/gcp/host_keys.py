"""Host keys from guest attributes, where Google's guest agent publishes them: an instance is
authenticated from the first connection on."""

from __future__ import annotations

from pathlib import Path

from shoal.core.errors import UnreachableError
from shoal.core.polling import PollUntilDeadline
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.model import Instance
from shoal.providers.vm.host_keys import pin

# Metadata of every instance, so that its agent publishes the keys.
METADATA = {"enable-guest-attributes": "TRUE"}
_POLL_SECONDS = 1.0


async def pin_published_keys(
    gcp: GcpClient, instance: Instance, known_hosts: Path, deadline: float
) -> None:
    """Pin the keys that an instance has published, as soon as it has, before `deadline` on the
    monotonic clock."""
    path = f"zones/{instance.zone}/instances/{instance.id}/getGuestAttributes"
    left = max(0.0, deadline - gcp.clock.monotonic())
    async for _ in PollUntilDeadline(gcp.clock, left, _POLL_SECONDS):
        reply = await gcp.compute(
            "GET", path, ignore_codes=("notFound",), query={"queryPath": "hostkeys/"}
        )
        items = (reply.get("queryValue") or {}).get("items") or ()
        keys = [f"{item['key']} {item['value']}" for item in items]
        if keys:
            pin(known_hosts, instance.id, *keys)
            return
    raise UnreachableError(
        "the instance has not published its host keys",
        why="it has no guest attributes below hostkeys/",
        fix="use an image with Google's guest agent, such as Debian or Ubuntu",
        node=instance.name,
    )
