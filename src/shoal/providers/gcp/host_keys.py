"""Host keys of instances, read from Google before the first connection: from guest attributes,
where Google's guest agent publishes them, or else from the serial console, where Shoal's startup
script prints them. Neither can be written from outside the instance."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from shoal.core.errors import DeniedError, UnreachableError
from shoal.core.polling import PollUntilDeadline
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.model import Instance
from shoal.providers.vm.host_keys import pin

_log = logging.getLogger(__name__)

# Metadata of every instance, so that its agent publishes the keys.
METADATA = {"enable-guest-attributes": "TRUE"}
_POLL_SECONDS = 1.0
# When to look at the console too: the image may have no agent.
_AGENT_SECONDS = 15.0
_PRINTED = re.compile(r"shoal-host-key: ((?:ssh|ecdsa)\S+) (\S+)")


async def pin_published_keys(
    gcp: GcpClient, instance: Instance, known_hosts: Path, deadline: float
) -> None:
    """Pin the keys of an instance as soon as Google has them, before `deadline` on the monotonic
    clock."""
    path = f"zones/{instance.zone}/instances/{instance.id}"
    started_at = gcp.clock.monotonic()
    is_denied = False
    async for _ in PollUntilDeadline(gcp.clock, max(0.0, deadline - started_at), _POLL_SECONDS):
        keys: list[str] = []
        if not is_denied:
            try:
                keys = await _guest_attributes(gcp, path)
            except DeniedError as error:  # a policy of the organisation turns them off
                _log.info("no guest attributes of %s: %s", instance.id, error.why)
                is_denied = True
        if not keys and (is_denied or gcp.clock.monotonic() > started_at + _AGENT_SECONDS):
            keys = await _console(gcp, path)
        if keys:
            pin(known_hosts, instance.id, *keys)
            return
    raise UnreachableError(
        "the instance has not published its host keys",
        why="its guest attributes and its serial console do not have them",
        fix="use an image with Google's guest agent, such as Debian or Ubuntu",
        node=instance.name,
    )


async def _guest_attributes(gcp: GcpClient, path: str) -> list[str]:
    reply = await gcp.compute(
        "GET",
        f"{path}/getGuestAttributes",
        ignore_codes=("notFound",),
        query={"queryPath": "hostkeys/"},
    )
    items = (reply.get("queryValue") or {}).get("items") or ()
    return [f"{item['key']} {item['value']}" for item in items]


async def _console(gcp: GcpClient, path: str) -> list[str]:
    """The keys that the startup script has printed last: it runs at every boot."""
    reply = await gcp.compute("GET", f"{path}/serialPort", ignore_codes=("notFound", "forbidden"))
    printed = _PRINTED.findall(str(reply.get("contents", "")))
    return [f"{kind} {key}" for kind, key in dict(printed).items()]
