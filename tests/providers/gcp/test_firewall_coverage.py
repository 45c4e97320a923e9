"""Which existing firewall rules are enough for a cluster. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.providers.gcp.firewall_coverage import covers, targeting

ME = ["198.51.100.7/32"]
TCP_22 = [{"IPProtocol": "tcp", "ports": ["22"]}]
ALL = [{"IPProtocol": "all"}]


def rule(**fields: Any) -> dict[str, Any]:
    return {"network": "https://x/projects/p/global/networks/default", **fields}


SSH = rule(sourceRanges=["0.0.0.0/0"], allowed=TCP_22)
INTERNAL = rule(sourceRanges=["10.128.0.0/9"], allowed=ALL)


def enough(*rules: dict[str, Any], tags: tuple[str, ...] = ("ray",)) -> bool:
    return covers(rules, "default", tags, ME)


def test_the_rules_of_a_default_network_are_enough() -> None:
    assert enough(SSH, INTERNAL)


@pytest.mark.parametrize(
    "ssh",
    [
        rule(sourceRanges=["203.0.113.0/24"], allowed=TCP_22),
        rule(sourceRanges=["0.0.0.0/0"], allowed=[{"IPProtocol": "tcp", "ports": ["80"]}]),
        rule(sourceRanges=["0.0.0.0/0"], allowed=[{"IPProtocol": "udp"}]),
        {**SSH, "disabled": True},
        {**SSH, "direction": "EGRESS"},
        {**SSH, "targetTags": ["web"]},
        {**SSH, "targetServiceAccounts": ["a@b"]},
        {**SSH, "network": "global/networks/other"},
        rule(sourceRanges=["2001:db8::/32"], allowed=TCP_22),
    ],
)
def test_a_rule_that_does_not_let_the_caller_in_is_not_enough(ssh: dict[str, Any]) -> None:
    assert not enough(ssh, INTERNAL)


@pytest.mark.parametrize(
    ("internal", "expected"),
    [
        (rule(sourceTags=["ray"], allowed=ALL), True),
        (rule(sourceTags=["web"], allowed=ALL), False),
        (
            rule(
                sourceRanges=["10.0.0.0/8"], allowed=[{"IPProtocol": "tcp", "ports": ["0-65535"]}]
            ),
            True,
        ),
        (rule(sourceRanges=["10.0.0.0/8"], allowed=TCP_22), False),
        (rule(sourceRanges=["8.8.8.0/24"], allowed=ALL), False),
    ],
)
def test_nodes_must_reach_each_other(internal: dict[str, Any], expected: bool) -> None:
    assert enough(SSH, internal) is expected


def test_only_rules_that_name_a_tag_of_the_file_are_given_by_it() -> None:
    named = {**SSH, "targetTags": ["ray", "web"]}
    assert targeting([named, INTERNAL], ["ray"]) == [named]
