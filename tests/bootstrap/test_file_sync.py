"""When large files go by the head, from data alone."""

from __future__ import annotations

from shoal.bootstrap.file_sync import should_relay
from shoal.bootstrap.mount_files import MountFiles

TWENTY_MEGABYTES = {"~/code": MountFiles(("a", "b"), 20_000_000)}


def test_files_go_by_the_head_on_a_thin_line() -> None:
    assert should_relay(TWENTY_MEGABYTES, seconds=10, workers=4)


def test_files_go_straight_to_the_workers_where_all_have_them_soon() -> None:
    assert not should_relay(TWENTY_MEGABYTES, seconds=4, workers=1)


def test_files_go_straight_to_however_many_workers_on_a_good_line() -> None:
    assert not should_relay(TWENTY_MEGABYTES, seconds=0.9, workers=64)
