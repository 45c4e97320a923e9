"""Small cluster specs for tests that do not read cluster files."""

from __future__ import annotations

from shoal.spec.cluster_spec import (
    AuthSpec,
    ClusterSpec,
    FilesSpec,
    NodeSetup,
    NodeType,
    ProviderSpec,
    ScalingSpec,
)


def node_type(
    name: str, *, min_workers: int = 0, max_workers: int = 0, setup: NodeSetup | None = None
) -> NodeType:
    return NodeType(
        name=name,
        node_config={},
        resources={"CPU": 1},
        labels={},
        min_workers=min_workers,
        max_workers=max_workers,
        idle_timeout_s=300,
        setup=setup or NodeSetup(),
    )


def cluster(
    *,
    name: str = "c",
    min_workers: int = 0,
    max_workers: int = 10,
    setup: NodeSetup | None = None,
) -> ClusterSpec:
    """An embedded cluster with a type `head` and a type `worker`."""
    types = [
        node_type("head"),
        node_type("worker", min_workers=min_workers, max_workers=max_workers, setup=setup),
    ]
    return ClusterSpec(
        cluster_name=name,
        provider=ProviderSpec("embedded", {}),
        auth=AuthSpec(),
        head_node_type="head",
        node_types={t.name: t for t in types},
        head_setup=setup or NodeSetup(),
        files=FilesSpec(mounts={}),
        scaling=ScalingSpec(max_workers=max_workers, upscaling_speed=1.0, idle_timeout_s=300),
    )
