"""HOST:PORT addresses of both IP versions."""

from __future__ import annotations

import pytest

from shoal.core.addresses import is_link_local, join_host_port, normalized, split_host_port


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1:6379"),
        ("head.lab", "head.lab:6379"),
        ("2001:db8::1", "[2001:db8::1]:6379"),
    ],
)
def test_a_host_and_a_port_are_joined_and_split_again(host: str, address: str) -> None:
    assert join_host_port(host, 6379) == address
    assert split_host_port(address) == (host, "6379")


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("Head.lab", "Head.lab"),
        ("[no-address]", "[no-address]"),
    ],
)
def test_an_ip_address_has_one_spelling(spelling: str, expected: str) -> None:
    assert normalized(spelling) == expected


def test_only_link_local_addresses_belong_to_one_link() -> None:
    assert is_link_local("fe80::1%eth0")
    assert not is_link_local("fd00::1")
    assert not is_link_local("169.254.0.1")
    assert not is_link_local("head.lab")
