"""Cluster specs and nodes for the planner benchmarks."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.node_phase import Phase
from shoal.scaling import NodeView
from shoal.spec.cluster_spec import (
    AuthSpec,
    ClusterSpec,
    FilesSpec,
    NodeSetup,
    NodeType,
    ProviderSpec,
    ScalingSpec,
)

HEAD = NodeView("head", "head", Phase.READY, is_head=True)
NO_LIMIT = 1_000_000


def cluster(
    types: Mapping[str, Mapping[str, float]], *, max_workers: int = NO_LIMIT
) -> ClusterSpec:
    """A cluster of these node types that may grow at once to any size up to the limit."""
    node_types = {"head": NodeType("head", {}, {}, {}, 0, 0, 300.0)}
    for name, resources in types.items():
        node_types[name] = NodeType(name, {}, resources, {}, 0, max_workers, 300.0)
    return ClusterSpec(
        cluster_name="bench",
        provider=ProviderSpec("aws", {}),
        auth=AuthSpec(),
        head_node_type="head",
        node_types=node_types,
        head_setup=NodeSetup(),
        files=FilesSpec({}),
        scaling=ScalingSpec(max_workers, upscaling_speed=NO_LIMIT, idle_timeout_s=300.0),
    )


def node(
    name: str, node_type: str, total: Mapping[str, float], free: Mapping[str, float]
) -> NodeView:
    """A ready node with these free resources."""
    return NodeView(name, node_type, Phase.READY, total=total, available=free)
