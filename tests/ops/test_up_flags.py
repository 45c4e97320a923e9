"""Options of `up`: they apply to files and to names, and stay in force until they are changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import ConfigError
from shoal.core.events import ignore_events
from shoal.ops import cluster_lookup, known_clusters, up_flags
from shoal.ops.cluster_lookup import ClusterRef, LocatedSpec
from shoal.ops.context import Context
from shoal.spec import Overrides

YAML = """
cluster_name: demo
max_workers: 4
provider: {type: embedded}
available_node_types: {head: {}, worker: {min_workers: 2}}
head_node_type: head
"""


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(ignore_events, home=tmp_path / "home")


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    path = tmp_path / "demo.yaml"
    path.write_text(YAML)
    return path


async def up(ctx: Context, source: Path | str, **options: float) -> LocatedSpec:
    """Resolve and record a cluster as `shoal up` does."""
    overrides = Overrides(**options)  # type: ignore[arg-type]
    located = await cluster_lookup.locate(ctx, ClusterRef(str(source), overrides))
    known_clusters.record(ctx, located.spec)
    up_flags.record(ctx, located.spec.cluster_name, located.flags)
    return located


def limits(located: LocatedSpec) -> tuple[int, int, float]:
    spec = located.spec
    worker = spec.node_types["worker"]
    assert worker.max_workers == spec.scaling.max_workers
    return worker.min_workers, worker.max_workers, spec.shoal.autostop


async def test_options_apply_to_a_known_cluster(ctx: Context, yaml: Path) -> None:
    await up(ctx, yaml)
    assert limits(await up(ctx, "demo", max_workers=3)) == (2, 3, 0)
    assert limits(await up(ctx, "demo", min_workers=1)) == (1, 3, 0)
    assert limits(await up(ctx, "demo", autostop=60)) == (1, 3, 60)


async def test_an_option_stays_until_it_is_changed(ctx: Context, yaml: Path) -> None:
    await up(ctx, yaml, autostop=1860)
    assert limits(await up(ctx, yaml, max_workers=2)) == (2, 2, 1860)
    assert limits(await up(ctx, "demo")) == (2, 2, 1860)
    located = await up(ctx, yaml, autostop=0)
    assert limits(located) == (2, 2, 0)
    assert up_flags.describe(located.flags) == "--autostop off --max-workers 2"


async def test_an_option_ends_when_the_file_gets_another_value(ctx: Context, yaml: Path) -> None:
    await up(ctx, yaml, max_workers=3, autostop=60)
    yaml.write_text(YAML.replace("max_workers: 4", "max_workers: 8"))
    assert limits(await up(ctx, yaml)) == (2, 8, 60)


async def test_an_option_ends_with_the_cluster(ctx: Context, yaml: Path) -> None:
    known_clusters.forget(ctx, (await up(ctx, yaml, max_workers=3)).spec)
    assert limits(await up(ctx, yaml)) == (2, 4, 0)


@pytest.mark.parametrize(
    "options", [{"max_workers": 1}, {"min_workers": 5}, {"cluster_name": "other"}]
)
async def test_options_that_contradict_a_known_cluster_are_an_error(
    ctx: Context, yaml: Path, options: dict[str, int]
) -> None:
    await up(ctx, yaml)
    with pytest.raises(ConfigError):
        await up(ctx, "demo", **options)


async def test_min_workers_of_several_types_are_set_in_the_file(ctx: Context, yaml: Path) -> None:
    yaml.write_text(YAML.replace("worker:", "other: {}, worker:"))
    await up(ctx, yaml)
    with pytest.raises(ConfigError, match="--min-workers cannot be applied"):
        await up(ctx, "demo", min_workers=1)
