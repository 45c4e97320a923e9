"""The scheduler of Ray's autoscaler v2, called directly with the same input."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import (
    RUNNING,
    GangResourceRequest,
    NodeState,
    ResourceRequestByCount,
)
from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

from benchmarks.planner_bench.clusters import NO_LIMIT

Resources = Mapping[str, float]


@dataclass(frozen=True)
class RayPlan:
    """What Ray would launch, and how long it took to decide."""

    launches: Mapping[str, int]
    unplaced: int
    seconds: float


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


def _gang(number: int, bundles: Sequence[Resources]) -> GangResourceRequest:
    affinity = [(ResourceRequestUtil.PlacementConstraintType.AFFINITY, f"group{number}", "")]
    return GangResourceRequest(
        requests=[ResourceRequestUtil.make(dict(bundle), affinity) for bundle in bundles]
    )


def _instance(number: int, node_type: str, total: Resources, free: Resources) -> AutoscalerInstance:
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
