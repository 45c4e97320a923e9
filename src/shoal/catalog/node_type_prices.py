"""Catalog prices of a cluster's node types.

Planning starts from these; offerings from a provider, with current prices and zones, replace them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.catalog.gcp_machine_types import gcp_machine_type
from shoal.catalog.instance_type import InstanceType
from shoal.catalog.price_table import Cloud, load_price_table
from shoal.scaling.inputs import Market, Offering
from shoal.spec.cluster_spec import ClusterSpec, NodeType

# The clouds whose prices the catalog has, and where their node_config names the instance type.
_INSTANCE_TYPE_KEYS: Mapping[str, tuple[Cloud, str]] = {
    "aws": ("aws", "InstanceType"),
    "gcp": ("gcp", "machineType"),
}


def offerings_for(spec: ClusterSpec) -> list[Offering]:
    """One offering for each node type, without a price if the catalog has none for it or for the
    region. Empty if the catalog does not know the provider."""
    if spec.provider.type not in _INSTANCE_TYPE_KEYS:
        return []
    return [_offering(spec, t, _instance_type(spec, t)) for t in spec.node_types.values()]


def catalog_source(spec: ClusterSpec) -> str:
    """Where the prices of `offerings_for` come from, and their date."""
    if spec.provider.type not in _INSTANCE_TYPE_KEYS:
        return ""
    cloud, _ = _INSTANCE_TYPE_KEYS[spec.provider.type]
    return f"the catalog of {load_price_table(cloud).dated}"


def _instance_type(spec: ClusterSpec, node_type: NodeType) -> InstanceType | None:
    cloud, key = _INSTANCE_TYPE_KEYS[spec.provider.type]
    if cloud == "gcp":
        return gcp_machine_type(node_type.node_config)
    return load_price_table(cloud).find(str(node_type.node_config.get(key, "")))


def _offering(
    spec: ClusterSpec, node_type: NodeType, instance_type: InstanceType | None
) -> Offering:
    market = market_of(node_type.node_config)
    if instance_type is None:
        return Offering(node_type.name, market)
    price = instance_type.price(_region(spec))
    return Offering(
        node_type=node_type.name,
        market=market,
        price_per_hour=price.spot if market == "spot" else price.on_demand,
        resources=instance_type.resources(),
    )


def _region(spec: ClusterSpec) -> str:
    """The region of a spec; a zone of GCP is its region and a letter."""
    settings = spec.provider.settings
    zones = settings.get("availability_zone") or ""
    zone = str(zones if isinstance(zones, str) else zones[0]).partition(",")[0].strip()
    return str(settings.get("region") or zone.rpartition("-")[0])


def market_of(config: Mapping[str, Any]) -> Market:
    """The market that a `node_config` of AWS or GCP requests."""
    market_options = config.get("InstanceMarketOptions") or {}
    scheduling = config.get("scheduling") or {}
    if isinstance(scheduling, list):  # Ray's examples write it as a list of single settings
        scheduling = {k: v for entry in scheduling for k, v in entry.items()}
    is_spot = (
        market_options.get("MarketType") == "spot"
        or scheduling.get("preemptible") is True
        or scheduling.get("provisioningModel") == "SPOT"
    )
    return "spot" if is_spot else "on-demand"
