"""What a cluster file's node types are sold for, as far as the catalog knows.

This is the estimate that planning starts from; a provider that has seen today's prices, or knows
its zones, can do better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.catalog.instance_type import InstanceType
from shoal.catalog.price_table import load_price_table
from shoal.scaling.inputs import Market, Offering
from shoal.spec.cluster_spec import ClusterSpec, NodeType


def offerings_for(spec: ClusterSpec) -> list[Offering]:
    """One offer for each node type; its price is None where the catalog does not know it, or has
    none for the region."""
    if spec.provider.type not in ("aws", "gcp"):
        return []
    return [_offer(spec, t, _listing(spec, t)) for t in spec.node_types.values()]


def _listing(spec: ClusterSpec, node_type: NodeType) -> InstanceType | None:
    config = node_type.node_config
    if spec.provider.type == "aws":
        return load_price_table("aws").find(str(config.get("InstanceType", "")))
    # GCP allows a whole address here, of which the last part is the name.
    return load_price_table("gcp").find(str(config.get("machineType", "")).rpartition("/")[2])


def _offer(spec: ClusterSpec, node_type: NodeType, listing: InstanceType | None) -> Offering:
    market = market_of(node_type.node_config)
    if listing is None:
        return Offering(node_type.name, market)
    price = listing.price(str(spec.provider.settings.get("region", "")))
    return Offering(
        node_type=node_type.name,
        market=market,
        price_per_hour=price.spot if market == "spot" else price.on_demand,
        resources=listing.resources(),
    )


def market_of(config: Mapping[str, Any]) -> Market:
    """Whether a node's configuration asks for spot machines, in the words of either cloud."""
    market = config.get("InstanceMarketOptions") or {}
    scheduling = config.get("scheduling") or {}
    if isinstance(scheduling, list):  # Ray's examples write it as a list of single settings
        scheduling = {k: v for entry in scheduling for k, v in entry.items()}
    spot = (
        market.get("MarketType") == "spot"
        or scheduling.get("preemptible") is True
        or scheduling.get("provisioningModel") == "SPOT"
    )
    return "spot" if spot else "on-demand"
