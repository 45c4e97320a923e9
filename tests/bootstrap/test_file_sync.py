"""Whether large file mounts are relayed by the head."""

from __future__ import annotations

from shoal.bootstrap.file_sync import should_relay
from shoal.bootstrap.mount_files import MountFiles

TWENTY_MEGABYTES = {"~/code": MountFiles(("a", "b"), 20_000_000)}


def test_head_relays_files_on_a_slow_link() -> None:
    assert should_relay(TWENTY_MEGABYTES, seconds=10, workers=4)


def test_files_are_sent_directly_if_that_takes_a_few_seconds_in_total() -> None:
    assert not should_relay(TWENTY_MEGABYTES, seconds=4, workers=1)


def test_files_are_sent_directly_on_a_fast_link_whatever_the_number_of_workers() -> None:
    assert not should_relay(TWENTY_MEGABYTES, seconds=0.9, workers=64)
