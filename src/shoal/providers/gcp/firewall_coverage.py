"""Whether firewall rules that exist already allow what a cluster needs. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Rule = Mapping[str, Any]
_SSH_PORT = 22
_ALL_PORTS = ("0-65535", "1-65535")


def covers(
    rules: Sequence[Rule], network: str, tags: Collection[str], ssh_from: Sequence[str]
) -> bool:
    """Whether these rules allow SSH from `ssh_from`, and all TCP traffic between instances with
    these tags. Rules without target tags apply to every instance of the network."""
    applying = [rule for rule in rules if _applies(rule, network, tags)]
    has_ssh = all(any(_allows_ssh(rule, source) for rule in applying) for source in ssh_from)
    return has_ssh and any(_allows_peers(rule, tags) for rule in applying)


def targeting(rules: Sequence[Rule], tags: Collection[str]) -> list[Rule]:
    """The rules that name one of these tags."""
    return [rule for rule in rules if set(rule.get("targetTags") or ()) & set(tags)]


def _applies(rule: Rule, network: str, tags: Collection[str]) -> bool:
    targets = set(rule.get("targetTags") or ())
    return (
        rule.get("direction", "INGRESS") == "INGRESS"
        and not rule.get("disabled")
        and not rule.get("targetServiceAccounts")
        and str(rule.get("network", "")).rpartition("/")[2] == network
        and (not targets or bool(targets & set(tags)))
    )


def _allows_ssh(rule: Rule, source: str) -> bool:
    return _allows_port(rule, _SSH_PORT) and any(
        _contains(outer, source) for outer in rule.get("sourceRanges") or ()
    )


def _allows_peers(rule: Rule, tags: Collection[str]) -> bool:
    is_everything = any(
        allowed.get("IPProtocol") == "all"
        or (allowed.get("IPProtocol") == "tcp" and _is_every_port(allowed.get("ports")))
        for allowed in rule.get("allowed") or ()
    )
    from_peers = set(rule.get("sourceTags") or ()) & set(tags)
    private = any(_is_private(cidr) for cidr in rule.get("sourceRanges") or ())
    return is_everything and (bool(from_peers) or private)


def _is_every_port(ports: Sequence[str] | None) -> bool:
    return not ports or any(port in _ALL_PORTS for port in ports)


def _allows_port(rule: Rule, port: int) -> bool:
    for allowed in rule.get("allowed") or ():
        if allowed.get("IPProtocol") == "all":
            return True
        if allowed.get("IPProtocol") in ("tcp", "6") and (
            not allowed.get("ports") or any(_in_range(p, port) for p in allowed["ports"])
        ):
            return True
    return False


def _in_range(ports: str, port: int) -> bool:
    first, _, last = str(ports).partition("-")
    return int(first) <= port <= int(last or first)


def _contains(outer: str, inner: str) -> bool:
    try:
        return ipaddress.ip_network(inner).subnet_of(ipaddress.ip_network(outer))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # one of them is IPv6
        return False


def _is_private(cidr: str) -> bool:
    try:
        network = ipaddress.ip_network(cidr)
    except ValueError:
        return False
    return network.is_private or network.prefixlen == 0
