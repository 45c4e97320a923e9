"""Pinned host keys, and how they are passed from the laptop to the head."""

from __future__ import annotations

from pathlib import Path

from shoal.remote import known_hosts
from shoal.remote.known_hosts import HostKeysPerInstance, SharedHostKeys


def test_added_keys_replace_those_of_the_same_host_only(tmp_path: Path) -> None:
    laptop = SharedHostKeys(tmp_path / "a" / "laptop")
    head = SharedHostKeys(tmp_path / "b" / "head")
    assert laptop.keys() == {}
    laptop.add({"10.0.0.1": ["ssh-ed25519 AAAA"], "10.0.0.2": ["ssh-ed25519 BBBB", "ssh-rsa C"]})
    head.add({"10.0.0.1": ["ssh-ed25519 old"], "10.0.0.9": ["ssh-ed25519 own"]})
    head.add(laptop.keys())
    assert head.keys() == {**laptop.keys(), "10.0.0.9": ["ssh-ed25519 own"]}


def test_an_added_one_time_key_does_not_replace_the_pinned_key(tmp_path: Path) -> None:
    host_keys = HostKeysPerInstance(tmp_path / "pins")
    assert host_keys.keys() == {}
    host_keys.add({"i-1": ["one-time"], "i-2": ["two"]})
    known_hosts.write(tmp_path / "pins" / "i-1", {"i-1": ["lasting"]})
    host_keys.add({"i-1": ["one-time"], "i-3": ["three"]})
    assert host_keys.keys() == {"i-1": ["lasting"], "i-2": ["two"], "i-3": ["three"]}


def test_a_file_that_ssh_wrote_is_read(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("10.0.0.1 ssh-ed25519 AAAA me@here\n\n10.0.0.1 ssh-rsa BBBB\n")
    assert known_hosts.read(file) == {"10.0.0.1": ["ssh-ed25519 AAAA me@here", "ssh-rsa BBBB"]}
