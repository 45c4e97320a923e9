"""Security groups as packet filter rules on the router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.simcloud.network import OUTSIDE, slow_name

_ANY_PROTOCOL = "-1"


def rules(
    instances: Sequence[Mapping[str, Any]],
    groups: Iterable[Mapping[str, Any]],
    links: Mapping[str, str],
) -> str:
    """Return the nft commands that apply the security groups of every instance to its link.

    `links` has the link's name for each instance id; instances without one do not exist yet.
    Traffic inside a VPC uses private addresses; traffic to a public address (translated by NAT)
    never matches a rule with a source group, as in EC2.
    """
    by_id = {group["id"]: group for group in groups}
    members: dict[str, list[str]] = {}
    for instance in instances:
        if instance["id"] in links:
            for group in instance["groups"]:
                members.setdefault(group, []).append(instance["private"])

    lines = ["flush map inet fabric guarded"]
    for instance in instances:
        link = links.get(instance["id"])
        if link is None:
            continue
        chain = f"guard_{link}"
        lines += [
            f"add chain inet fabric {chain}",
            f"flush chain inet fabric {chain}",
            # From outside, instances are reachable at public addresses only.
            f"add rule inet fabric {chain} ip saddr {OUTSIDE} ct status & dnat == 0 drop",
        ]
        for group in instance["groups"]:
            for rule in by_id[group]["ingress"] if group in by_id else ():
                lines += [
                    f"add rule inet fabric {chain} {match} accept"
                    for match in _matches(rule, members)
                ]
        lines.append(f"add rule inet fabric {chain} drop")
        for name in (link, slow_name(link)):
            lines.append(f'add element inet fabric guarded {{ "{name}" : jump {chain} }}')
    return "\n".join(lines) + "\n"


def _matches(rule: Mapping[str, Any], members: Mapping[str, list[str]]) -> list[str]:
    if rule["group"]:
        sources = members.get(rule["group"], [])
        origin = f"ct status & dnat == 0 ip saddr {{ {', '.join(sources)} }}"
        if not sources:
            return []
    elif rule["cidr"]:
        origin = f"ip saddr {rule['cidr']}"
    else:
        return []  # IPv6 and prefix lists do not exist here
    protocol = rule["protocol"]
    if protocol in (None, _ANY_PROTOCOL):
        return [origin]
    if protocol in ("tcp", "udp"):
        return [f"{origin} {protocol} dport {rule['from']}-{rule['to']}"]
    return [f"{origin} meta l4proto {protocol}"]
