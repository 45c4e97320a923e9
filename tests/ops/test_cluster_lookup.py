"""What is remembered of clusters, and what becomes of them when it cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, IncompleteError
from shoal.core.events import Event, Unchanged, Warned
from shoal.ops import cluster_lookup
from shoal.ops.context import Context
from shoal.ops.down import down_all
from shoal.ops.status import ls
from shoal.spec import Overrides, default_embedded


def home_with(tmp_path: Path, *names: str, unreadable: str) -> tuple[Context, list[Event]]:
    events: list[Event] = []
    ctx = Context(events.append, home=tmp_path)
    for name in names:
        cluster_lookup.remember(ctx, default_embedded(Overrides(cluster_name=name)).spec)
    (tmp_path / "clusters" / f"{unreadable}.json").write_text('{"cluster_name": ')
    return ctx, events


def test_a_cluster_of_which_nothing_can_be_read_is_not_taken_for_another(tmp_path: Path) -> None:
    ctx, _ = home_with(tmp_path, "a", unreadable="train")
    with pytest.raises(ConfigError, match="remembered of cluster train cannot be read") as told:
        cluster_lookup.recall(ctx, "train")
    assert "YAML" in told.value.fix
    assert cluster_lookup.recall(ctx, "a").cluster_name == "a"


async def test_a_cluster_of_which_nothing_can_be_read_hides_no_other(tmp_path: Path) -> None:
    ctx, events = home_with(tmp_path, "a", "z", unreadable="m")
    assert [(e.cluster, bool(e.problem)) for e in await ls(ctx)] == [
        ("a", False),
        ("m", True),
        ("z", False),
    ]
    assert [e.fix != "" for e in events if isinstance(e, Warned)] == [True]


async def test_one_that_cannot_be_given_back_does_not_keep_the_others_from_it(
    tmp_path: Path,
) -> None:
    ctx, events = home_with(tmp_path, "a", "z", unreadable="m")
    with pytest.raises(IncompleteError, match="could not give back m"):
        await down_all(ctx)
    assert [e.cluster for e in events if isinstance(e, Unchanged)] == ["a", "z"]
    assert [e.what for e in events if isinstance(e, Warned)] != []
    assert cluster_lookup.remembered_names(ctx.home) == ["m"]
