"""The note that a cluster leaves when it shuts itself down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.cluster import shutdown_note
from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import NotFoundError
from shoal.core.events import ignore_events
from shoal.ops import known_clusters
from shoal.ops.context import Context
from tests.specs import cluster

SPEC = cluster(name="quiet")


async def test_a_cluster_that_autostop_ended_says_when_and_why(tmp_path: Path) -> None:
    ctx = Context(ignore_events, home=tmp_path)
    shutdown_note.write(tmp_path, "quiet", ctx.clock.now(), 1800)
    with pytest.raises(NotFoundError, match="cluster quiet is not up") as caught:
        await ClusterHandle.of(ctx, SPEC).head()
    assert caught.value.why.startswith("autostop ended it at ")
    assert caught.value.why.endswith(", after 30m without use")


def test_a_cluster_that_is_brought_up_again_forgets_it(tmp_path: Path) -> None:
    ctx = Context(ignore_events, home=tmp_path)
    shutdown_note.write(tmp_path, "quiet", ctx.clock.now(), 1800)
    known_clusters.record_attempt(ctx, SPEC)
    assert shutdown_note.read(tmp_path, "quiet", ctx.clock.now()) == ""


def test_a_note_of_yesterday_has_a_date(tmp_path: Path) -> None:
    shutdown_note.write(tmp_path, "quiet", 0.0, 90)
    assert re.search(r"at \d{4}-\d\d-\d\d ", shutdown_note.read(tmp_path, "quiet", 100_000.0))


def test_a_damaged_note_is_ignored(tmp_path: Path) -> None:
    shutdown_note.write(tmp_path, "quiet", 0.0, 90)
    next((tmp_path / "clusters").iterdir()).write_text("{")
    assert shutdown_note.read(tmp_path, "quiet", 0.0) == ""
