"""The registry of known clusters, and what happens when one of its records is unreadable."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, IncompleteError
from shoal.core.events import Event, Unchanged, Warned
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.ops.down import down_all
from shoal.ops.ls import ls
from shoal.spec import Overrides, default_embedded


def context_with(tmp_path: Path, *names: str, unreadable: str) -> tuple[Context, list[Event]]:
    """A context with records of these clusters, one of them unreadable, and its events."""
    events: list[Event] = []
    ctx = Context(events.append, home=tmp_path)
    for name in names:
        known_clusters.record(ctx, default_embedded(Overrides(cluster_name=name)).spec)
    (tmp_path / "clusters" / f"{unreadable}.json").write_text('{"cluster_name": ')
    return ctx, events


def test_an_unreadable_record_is_an_error_with_a_fix(tmp_path: Path) -> None:
    ctx, _ = context_with(tmp_path, "a", unreadable="train")
    with pytest.raises(ConfigError, match="could not read the local record of cluster train") as e:
        known_clusters.load_recorded(ctx, "train")
    assert "YAML" in e.value.fix
    assert known_clusters.load_recorded(ctx, "a").cluster_name == "a"


async def test_ls_lists_the_other_clusters_despite_an_unreadable_record(tmp_path: Path) -> None:
    ctx, events = context_with(tmp_path, "a", "z", unreadable="m")
    assert [(e.cluster, bool(e.problem)) for e in await ls(ctx)] == [
        ("a", False),
        ("m", True),
        ("z", False),
    ]
    assert [e.fix != "" for e in events if isinstance(e, Warned)] == [True]


async def test_down_all_terminates_the_other_clusters_despite_an_unreadable_record(
    tmp_path: Path,
) -> None:
    ctx, events = context_with(tmp_path, "a", "z", unreadable="m")
    with pytest.raises(IncompleteError, match="could not terminate m"):
        await down_all(ctx)
    assert [e.cluster for e in events if isinstance(e, Unchanged)] == ["a", "z"]
    assert [e.what for e in events if isinstance(e, Warned)] != []
    assert known_clusters.recorded_names(ctx.home) == ["m"]
