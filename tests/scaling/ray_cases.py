"""Instance types and helpers of the cases from Ray's own scheduler tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.scaling import (
    Demand,
    History,
    NodeView,
    Offering,
    Plan,
    plan,
)
from shoal.spec.cluster_spec import NodeType
from tests.scaling.clusters import (
    HEAD,
    node_type,
    ready,
    spec,
)

LARGE = node_type("m4.large", {"CPU": 2}, max_workers=10)
X4 = node_type("m4.4xlarge", {"CPU": 16}, max_workers=8)
X16 = node_type("m4.16xlarge", {"CPU": 64}, max_workers=4)
P2 = node_type("p2.xlarge", {"CPU": 16, "GPU": 1}, max_workers=10)
P2_X8 = node_type("p2.8xlarge", {"CPU": 32, "GPU": 8}, max_workers=4)
AWS = (LARGE, X4, X16, P2, P2_X8)
AWS_PRICES = {
    "m4.large": 0.1,
    "m4.4xlarge": 0.8,
    "m4.16xlarge": 3.2,
    "p2.xlarge": 0.9,
    "p2.8xlarge": 7.2,
}


def planned(
    types: Sequence[NodeType],
    pending: Demand,
    nodes: Sequence[NodeView] = (),
    *,
    max_workers: int = 10_000,
    upscaling_speed: float = 1e6,
    prices: Mapping[str, float] | None = None,
) -> Plan:
    cluster = spec(*types, max_workers=max_workers, upscaling_speed=upscaling_speed)
    offerings = [Offering(name, price_per_hour=price) for name, price in (prices or {}).items()]
    return plan(cluster, [HEAD, *nodes], pending, History(), 0.0, offerings)


def free(node_type: NodeType, count: int = 1) -> list[NodeView]:
    return [ready(f"{node_type.name}-{i}", node_type, node_type.resources) for i in range(count)]


def unmet(result: Plan) -> int:
    return sum(row.count for row in result.unmet)
