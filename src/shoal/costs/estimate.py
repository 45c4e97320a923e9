"""The hourly price of the nodes that a cluster will have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.core.events import PriceEstimated, PriceItem
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class PlannedNodes:
    """Nodes of one type that will run. Of instances that exist, `instance_type`, `market` and
    `price_per_hour` are theirs; empty or None: as the node type's offering has it."""

    node_type: str
    count: int = 1
    instance_type: str = ""
    market: str = ""
    price_per_hour: float | None = None


def estimate(
    spec: ClusterSpec, nodes: Iterable[PlannedNodes], offerings: Sequence[Offering], source: str
) -> PriceEstimated:
    """The hourly price of these nodes by offerings from `source`."""
    by_node_type = {offering.node_type: offering for offering in offerings}
    counts: Counter[tuple[str, str, str, float | None]] = Counter()
    for group in nodes:
        configured = _configured_instance_type(spec, group.node_type)
        instance_type = group.instance_type or configured
        offering = by_node_type.get(group.node_type, Offering(group.node_type))
        price = group.price_per_hour
        # The offering is for the configured instance type; an older instance may be another one.
        if price is None and configured in ("", instance_type):
            price = offering.price_per_hour
        market = group.market or offering.market
        counts[group.node_type, instance_type, market, price] += group.count
    items = tuple(
        PriceItem(
            count,
            node_type,
            instance_type,
            market,
            price,
            by_node_type[node_type].disks if node_type in by_node_type else "",
            by_node_type[node_type].disks_per_hour if node_type in by_node_type else 0.0,
        )
        for (node_type, instance_type, market, price), count in counts.items()
    )
    known = [
        item.count * (item.price + item.disks_price) for item in items if item.price is not None
    ]
    return PriceEstimated(
        cluster=spec.cluster_name,
        items=items,
        per_hour=sum(known),
        complete=len(known) == len(items),
        source=source,
    )


def _configured_instance_type(spec: ClusterSpec, node_type: str) -> str:
    entry = spec.node_types.get(node_type)
    config = entry.node_config if entry is not None else {}
    name = config.get("InstanceType") or str(config.get("machineType", "")).rpartition("/")[2]
    return str(name)
