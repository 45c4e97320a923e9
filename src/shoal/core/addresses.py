"""HOST:PORT addresses, with IPv6 hosts in brackets, as in URLs and in Ray."""

from __future__ import annotations

import ipaddress


def join_host_port(host: str, port: int | str) -> str:
    """The address HOST:PORT; an IPv6 host is put in brackets."""
    return f"{bracketed(host)}:{port}"


def split_host_port(address: str) -> tuple[str, str]:
    """The host, without brackets, and the port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def bracketed(host: str) -> str:
    """The host as it stands before a port: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def normalized(host: str) -> str:
    """An IP address in its shortest spelling, without brackets; anything else unchanged."""
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return host


def is_link_local(host: str) -> bool:
    """Whether it is an IPv6 address that is only valid on one link: each machine reaches it through
    another interface."""
    try:
        address = ipaddress.ip_address(normalized(host))
    except ValueError:
        return False
    return address.version == 6 and address.is_link_local
