"""What a sweep costs before it has begun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.ops.sweep_price import runs_at_once
from shoal.spec.cluster_spec import ClusterSpec
from tests.specs import cluster, node_type


def cluster_of(max_workers: int, **types: tuple[dict[str, float], int]) -> ClusterSpec:
    """A cluster with these node types: resources and max_workers of each."""
    spec = cluster(max_workers=max_workers)
    entries = {
        name: replace(node_type(name, max_workers=count), resources=resources)
        for name, (resources, count) in types.items()
    }
    return replace(spec, node_types=entries, head_node_type="head")


@pytest.mark.parametrize(
    ("run", "count"),
    [
        ({"CPU": 1.0, "GPU": 0.0}, 2 + 2 * 8 + 1 * 4),
        ({"CPU": 2.0, "GPU": 0.0}, 1 + 2 * 4 + 1 * 2),
        ({"CPU": 1.0, "GPU": 0.5}, 2 * 2),
        ({"CPU": 0.0, "GPU": 0.0}, 0),
    ],
)
def test_the_runs_that_fit_at_once_respect_the_limits_of_the_cluster(
    run: dict[str, float], count: int
) -> None:
    types = {
        "head": ({"CPU": 2.0}, 0),
        "cpu": ({"CPU": 8.0}, 2),
        "gpu": ({"CPU": 4.0, "GPU": 1.0}, 5),
    }
    spec = cluster_of(3, **types)
    if run["GPU"]:
        spec = cluster_of(2, **types)
    assert runs_at_once(spec, run) == count


def test_unknown_resources_give_no_estimate() -> None:
    spec = cluster_of(1, head=({"CPU": 2.0}, 0), worker=({}, 1))
    assert runs_at_once(spec, {"CPU": 1.0}) == 0
