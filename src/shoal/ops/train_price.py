"""What the workers of a training job cost, by the shipped catalog."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.catalog import offerings_for
from shoal.spec.cluster_spec import ClusterSpec
from shoal.train.job.sizing import Prices


def worker_prices(spec: ClusterSpec, resources: Mapping[str, float]) -> Prices:
    """The price of one worker on the cheapest node type that it fits, and of the head. Nothing is
    known of clusters without prices."""
    offerings = {offering.node_type: offering for offering in offerings_for(spec)}
    per_worker = []
    for name, node_type in spec.node_types.items():
        offering = offerings.get(name)
        if offering is None or offering.price_per_hour is None or not node_type.max_workers:
            continue
        fitting = _fitting(node_type.resources or offering.resources or {}, resources)
        if fitting:
            per_worker.append((offering.price_per_hour + offering.disks_per_hour) / fitting)
    head = offerings.get(spec.head_node_type)
    if not per_worker or head is None or head.price_per_hour is None:
        return Prices()
    return Prices(min(per_worker), head.price_per_hour + head.disks_per_hour)


def _fitting(node: Mapping[str, float], worker: Mapping[str, float]) -> int:
    """How many workers fit on a node."""
    counts = [int(node.get(name, 0) // need) for name, need in worker.items() if need > 0]
    return min(counts, default=1)
