"""The scheduler of Ray's autoscaler v2, called directly with the same input."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import (
    RUNNING,
    ClusterResourceConstraint,
    GangResourceRequest,
    NodeState,
    ResourceRequest,
    ResourceRequestByCount,
)
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

from benchmarks.planner_bench.clusters import NO_LIMIT
from benchmarks.planner_bench.scenarios import Scenario
from shoal.scaling import Gang, Request, Shape, Strategy

Resources = Mapping[str, float]
logging.getLogger("ray.autoscaler.v2").setLevel(logging.WARNING)


@dataclass(frozen=True)
class RayPlan:
    """What Ray would launch, how many tasks (in `schedule`, tasks and gangs) it leaves, how long it
    took to decide, and how many floors and gangs it leaves."""

    launches: Mapping[str, int]
    unplaced: int
    seconds: float
    floors_unplaced: int = 0
    gangs_unplaced: int = 0


def schedule(
    types: Mapping[str, Resources],
    tasks: Iterable[tuple[Resources, int]] = (),
    strict_pack_gangs: Sequence[Sequence[Resources]] = (),
    nodes: Iterable[tuple[str, Resources, Resources]] = (),
) -> RayPlan:
    """Ray's plan for tasks, STRICT_PACK gangs, and nodes as (type, total, free)."""
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs={
            name: NodeTypeConfig(
                name=name, min_worker_nodes=0, max_worker_nodes=NO_LIMIT, resources=dict(r)
            )
            for name, r in types.items()
        },
        resource_requests=[
            ResourceRequestByCount(request=ResourceRequestUtil.make(dict(r)), count=n)
            for r, n in tasks
        ],
        gang_resource_requests=[_gang(i, g) for i, g in enumerate(strict_pack_gangs)],
        current_instances=[_instance(i, *node) for i, node in enumerate(nodes)],
    )
    started = time.process_time()
    reply = ResourceDemandScheduler().schedule(request)
    seconds = time.process_time() - started
    return RayPlan(
        {launch.instance_type: launch.count for launch in reply.to_launch},
        len(reply.infeasible_resource_requests) + len(reply.infeasible_gang_resource_requests),
        seconds,
    )


def schedule_scenario(case: Scenario) -> RayPlan:
    """Ray's plan for a scenario."""
    demand = case.demand
    request = SchedulingRequest(
        disable_launch_config_check=True,
        max_num_nodes=case.spec.scaling.max_workers,
        node_type_configs={
            t.name: NodeTypeConfig(
                name=t.name,
                min_worker_nodes=t.min_workers,
                max_worker_nodes=t.max_workers,
                resources=dict(t.resources),
                labels=dict(t.labels),
            )
            for t in case.spec.node_types.values()
            if t.name != "head"
        },
        resource_requests=[_request_by_count(r) for r in demand.requests],
        gang_resource_requests=[
            _gang_of(f"group{number}-{copy}", gang)
            for number, gang in enumerate(demand.gangs)
            for copy in range(gang.count)
        ],
        cluster_resource_constraints=[
            ClusterResourceConstraint(
                resource_requests=[_request_by_count(r) for r in demand.floors]
            )
        ]
        if demand.floors
        else [],
        current_instances=[
            _instance(i, n.node_type, n.total, n.available, n.labels)
            for i, n in enumerate(case.nodes)
        ],
    )
    started = time.process_time()
    reply = ResourceDemandScheduler().schedule(request)
    seconds = time.process_time() - started
    floors = sum(r.count for r in demand.floors)
    return RayPlan(
        {launch.instance_type: launch.count for launch in reply.to_launch},
        len(reply.infeasible_resource_requests),
        seconds,
        floors if reply.infeasible_cluster_resource_constraints else 0,
        len(reply.infeasible_gang_resource_requests),
    )


def _request_by_count(request: Request) -> ResourceRequestByCount:
    return ResourceRequestByCount(request=_request(request.shape), count=request.count)


def _request(
    shape: Shape, constraints: list[tuple[object, str, str]] | None = None
) -> ResourceRequest:
    selectors = [
        [
            (
                rule.key,
                LabelSelectorOperator.LABEL_OPERATOR_NOT_IN
                if rule.negated
                else LabelSelectorOperator.LABEL_OPERATOR_IN,
                list(rule.values),
            )
            for rule in rules
        ]
        for rules in shape.selectors
    ]
    return ResourceRequestUtil.make(dict(shape.resources), constraints, selectors)


def _gang_of(name: str, gang: Gang) -> GangResourceRequest:
    kinds = ResourceRequestUtil.PlacementConstraintType
    constraints = {
        Strategy.STRICT_PACK: [(kinds.AFFINITY, name, "")],
        Strategy.STRICT_SPREAD: [(kinds.ANTI_AFFINITY, name, "")],
    }.get(gang.strategy)
    return GangResourceRequest(requests=[_request(b, constraints) for b in gang.bundles])


def _gang(number: int, bundles: Sequence[Resources]) -> GangResourceRequest:
    affinity = [(ResourceRequestUtil.PlacementConstraintType.AFFINITY, f"group{number}", "")]
    return GangResourceRequest(
        requests=[ResourceRequestUtil.make(dict(bundle), affinity) for bundle in bundles]
    )


def _instance(
    number: int,
    node_type: str,
    total: Resources,
    free: Resources,
    labels: Mapping[str, str] | None = None,
) -> AutoscalerInstance:
    name = f"i{number}"
    return AutoscalerInstance(
        cloud_instance_id=name,
        ray_node=NodeState(
            node_id=name.encode(),
            instance_id=name,
            ray_node_type_name=node_type,
            total_resources=dict(total),
            available_resources=dict(free),
            status=RUNNING,
            labels=dict(labels or {}),
        ),
        im_instance=Instance(
            instance_id=name,
            cloud_instance_id=name,
            node_id=name,
            instance_type=node_type,
            status=Instance.RAY_RUNNING,
            node_kind=NodeKind.WORKER,
        ),
    )
