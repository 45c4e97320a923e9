"""The registry of known clusters, and what happens when one of its records is unreadable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.errors import ConfigError, IncompleteError
from shoal.core.events import Event, Unchanged, Warned
from shoal.ops import known_clusters
from shoal.ops.context import Context
from shoal.ops.down import down_all
from shoal.ops.ls import ls
from shoal.spec import Overrides, default_embedded
from shoal.spec.cluster_spec import AuthSpec, ClusterSpec, ProviderSpec
from tests.specs import cluster


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


def local_cluster(head: str, key: str = "") -> ClusterSpec:
    provider = ProviderSpec("local", {"head_ip": head, "worker_ips": []})
    return replace(cluster(name="c"), provider=provider, auth=AuthSpec(ssh_private_key=key))


def test_a_first_up_is_recorded_before_it_succeeds(tmp_path: Path) -> None:
    ctx = Context(lambda _: None, home=tmp_path)
    for spec in (local_cluster("10.0.0.1", "wrong"), local_cluster("10.0.0.1", "right")):
        known_clusters.record_attempt(ctx, spec)
        assert known_clusters.load_recorded(ctx, "c") == spec, "the last one counts"
        assert known_clusters.failed_attempt(ctx, spec) is None


def test_an_up_that_fails_leaves_the_record_that_works(tmp_path: Path) -> None:
    ctx = Context(lambda _: None, home=tmp_path)
    works, fails = local_cluster("10.0.0.1"), local_cluster("10.0.0.1", "wrong")
    known_clusters.record(ctx, works)
    for _ in range(2):
        known_clusters.record_attempt(ctx, fails)
        assert known_clusters.load_recorded(ctx, "c") == works
        assert known_clusters.failed_attempt(ctx, works) == fails
        assert known_clusters.recorded_names(tmp_path) == ["c"]
    known_clusters.record(ctx, fails)
    assert known_clusters.load_recorded(ctx, "c") == fails
    assert known_clusters.failed_attempt(ctx, fails) is None


def test_forgetting_a_cluster_keeps_the_record_of_another_one_with_its_name(tmp_path: Path) -> None:
    ctx = Context(lambda _: None, home=tmp_path)
    works, other = local_cluster("10.0.0.1"), local_cluster("10.0.0.9")
    known_clusters.record(ctx, works)
    known_clusters.record_attempt(ctx, other)
    known_clusters.forget(ctx, other)
    assert known_clusters.load_recorded(ctx, "c") == works
    known_clusters.forget(ctx, local_cluster("10.0.0.1", "another key"))
    assert not known_clusters.is_recorded(ctx, "c")
