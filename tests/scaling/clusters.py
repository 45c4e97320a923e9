"""Specs, nodes and demand for the planner's tests, each made in one line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from shoal.core.node_phase import Phase
from shoal.scaling import Demand, Gang, NodeView, Offering, Plan, Request, Shape, Strategy
from shoal.spec.cluster_spec import (
    AuthSpec,
    ClusterSpec,
    FilesSpec,
    NodeSetup,
    NodeType,
    ProviderSpec,
    ScalingSpec,
    ShoalSettings,
)

# Tests with random cases use the same few each time, so that a failure is due to the change.
# SHOAL_EXAMPLES=20000 draws so many new ones per test; do that after changes to the packing itself.
EXAMPLES = int(os.environ.get("SHOAL_EXAMPLES", "0"))

HEAD = NodeView("head", "head", Phase.READY, is_head=True)


def node_type(
    name: str,
    resources: Mapping[str, float],
    *,
    min_workers: int = 0,
    max_workers: int = 10_000,
    idle_timeout_s: float = 300.0,
    priority: int = 0,
    labels: Mapping[str, str] | None = None,
) -> NodeType:
    return NodeType(
        name, {}, resources, labels or {}, min_workers, max_workers, idle_timeout_s, priority
    )


def spec(
    *types: NodeType,
    max_workers: int = 10_000,
    upscaling_speed: float = 1e6,
    initial_workers: int | None = None,
    mode: str | None = None,
    target: float | None = None,
    consolidate: bool = False,
) -> ClusterSpec:
    head = node_type("head", {"CPU": 0}, max_workers=0)
    return ClusterSpec(
        cluster_name="test",
        provider=ProviderSpec("aws", {}),
        auth=AuthSpec(),
        head_node_type="head",
        node_types={t.name: t for t in (head, *types)},
        head_setup=NodeSetup(),
        files=FilesSpec({}),
        scaling=ScalingSpec(
            max_workers,
            upscaling_speed,
            300.0,
            initial_workers,
            mode,  # type: ignore[arg-type]
            target,
        ),
        shoal=ShoalSettings(consolidate=consolidate),
    )


# Four sizes, two with GPUs.
C4 = node_type("c4", {"CPU": 4})
C16 = node_type("c16", {"CPU": 16})
G1 = node_type("g1", {"CPU": 8, "GPU": 1})
G8 = node_type("g8", {"CPU": 96, "GPU": 8})
PRICES = {"c4": 0.2, "c16": 0.8, "g1": 0.75, "g8": 8.0}
OFFERINGS = tuple(Offering(name, price_per_hour=price) for name, price in PRICES.items())


def tasks(count: int, **resources: float) -> Request:
    return Request(Shape.of(resources), count)


def demand(
    *requests: Request, gangs: Iterable[Gang] = (), floors: Iterable[Request] = ()
) -> Demand:
    return Demand(tuple(requests), tuple(gangs), tuple(floors))


def gang(strategy: Strategy, *bundles: Mapping[str, float], count: int = 1) -> Gang:
    return Gang(tuple(Shape.of(b) for b in bundles), strategy, count)


def ready(
    name: str, node_type: NodeType, free: Mapping[str, float] | None = None, *, idle_s: float = 0.0
) -> NodeView:
    """A ready node: empty if idle, else with this much free (nothing by default)."""
    total = dict(node_type.resources)
    if free is None:
        free = total if idle_s else {}
    return NodeView(
        name,
        node_type.name,
        Phase.READY,
        total=total,
        available=free,
        labels=dict(node_type.labels),
        idle_s=idle_s,
    )


def launching(name: str, node_type: NodeType, phase: Phase = Phase.BOOTING) -> NodeView:
    return NodeView(name, node_type.name, phase)


def counts(plan: Plan) -> dict[str, int]:
    """How many of each type the plan launches."""
    result: dict[str, int] = {}
    for launch in plan.launches:
        result[launch.node_type] = result.get(launch.node_type, 0) + launch.count
    return result


def carried_out(plan: Plan, nodes: Iterable[NodeView]) -> list[NodeView]:
    """The nodes after the plan has been carried out."""
    gone = {c.node_id for c in plan.cancels}
    draining = {d.node_id for d in plan.drains}
    result = [
        replace(n, phase=Phase.DRAINING) if n.id in draining else n
        for n in nodes
        if n.id not in gone
    ]
    for number, launch in enumerate(plan.launches):
        result += [
            NodeView(
                f"new-{number}-{i}-{len(result)}",
                launch.node_type,
                Phase.REQUESTED,
                market=launch.market,
                zone=launch.zone,
                price_per_hour=launch.price_per_hour,
                throttled=launch.throttled,
            )
            for i in range(launch.count)
        ]
    return result
