"""The addresses from which this machine connects: SSH is allowed from these only."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import hashlib
import ipaddress
import os
import platform
import socket
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.errors import ConfigError

# AWS's service that returns the caller's address; the variable names a substitute for networks
# that cannot reach it.
_CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_VARIABLE = "SHOAL_CHECKIP_URL"
_CHECKIP_SECONDS = 5.0
_SSH_PORT = 22


@dataclass(frozen=True)
class CallerAddress:
    """A public address as a CIDR range. Seen through a proxy, it may be the proxy's."""

    cidr: str
    via_proxy: bool = False


def this_machine() -> str:
    """An identifier of this user on this machine: several may use a cluster, each with an address
    of their own."""
    user = f"{getpass.getuser()}@{platform.node()}"
    return hashlib.sha256(user.encode()).hexdigest()[:8]


async def fetch_caller_address() -> CallerAddress:
    """This machine's public address now: a laptop moves."""
    url = os.environ.get(_CHECKIP_VARIABLE) or _CHECKIP_URL
    via_proxy = False
    try:
        try:
            # SSH does not use the HTTP proxy, so its address would be the wrong one.
            text = await asyncio.to_thread(_fetch, url, {})
        except OSError:
            if not urllib.request.getproxies():
                raise
            text, via_proxy = await asyncio.to_thread(_fetch, url, None), True
        address = ipaddress.ip_address(text.strip())
    except (OSError, ValueError) as error:
        raise ConfigError(
            "could not determine your public IP address",
            why=f"{url} failed: {error}",
            fix="set it in the file: shoal: {ssh_from: [198.51.100.7/32]}",
        ) from None
    return CallerAddress(f"{address}/{address.max_prefixlen}", via_proxy)


def _fetch(url: str, proxies: dict[str, str] | None) -> str:
    """The text at a URL. Without `proxies`, those of the environment are used."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    with opener.open(url, timeout=_CHECKIP_SECONDS) as reply:
        return str(reply.read(200).decode())


def source_ranges(ranges: Sequence[str]) -> list[str]:
    """The address from which this machine connects to private addresses in these ranges, if it is
    in none of them: over a VPN or a peered network it has one of its own."""
    networks = [ipaddress.ip_network(cidr) for cidr in ranges]
    with contextlib.suppress(OSError, IndexError):
        address = ipaddress.ip_address(_source_address(str(networks[0][1])))
        if address.is_private and not any(address in network for network in networks):
            return [f"{address}/{address.max_prefixlen}"]
    return []


def _source_address(destination: str) -> str:
    """The local address of the route to a destination. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((destination, _SSH_PORT))
        return str(probe.getsockname()[0])
