"""Machine types: what Google says they have, what the catalog says they cost, and the offerings
that the planner chooses from. Google is always asked, so new types work without a release of
Shoal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.catalog.gcp_machine_types import gcp_machine_type, gpu_name
from shoal.catalog.instance_type import MEMORY_FRACTION
from shoal.core.concurrency import run_all
from shoal.core.errors import ShoalError
from shoal.providers.gcp import disk_prices, launch_request
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.launch_config import LaunchLocations
from shoal.scaling.inputs import Offering
from shoal.spec.cluster_spec import ClusterSpec

_NO_TYPE = ("notFound", "invalid", "badRequest")


def price_per_hour(config: Mapping[str, Any], region: str) -> float | None:
    """The list price of an instance with this `node_config` or record, in US dollars; None if the
    catalog does not have it, as for attached GPUs."""
    with_type = {**config, "machineType": launch_request.machine_type(config)}
    found = gcp_machine_type(with_type)
    if found is None:
        return None
    price = found.price(region)
    return price.spot if launch_request.market(config) == "spot" else price.on_demand


def resources(record: Mapping[str, Any], attached: Mapping[str, int]) -> dict[str, float]:
    """The resources that Ray finds on an instance, from Google's record of its machine type and the
    GPUs attached to it."""
    found: dict[str, float] = {
        "CPU": float(record["guestCpus"]),
        "memory": float(int(record["memoryMb"] * (1 << 20) * MEMORY_FRACTION)),
    }
    gpus = {
        str(entry["guestAcceleratorType"]): int(entry["guestAcceleratorCount"])
        for entry in record.get("accelerators") or ()
    }
    for name, count in {**gpus, **attached}.items():
        if "nvidia" in name:
            found["GPU"] = found.get("GPU", 0.0) + count
            found[f"accelerator_type:{gpu_name(name)}"] = 1.0
    return found


async def offerings(
    gcp: GcpClient, locations: LaunchLocations, spec: ClusterSpec
) -> Sequence[Offering]:
    """One offering per node type whose machine type one of its zones has."""

    async def offering(name: str) -> Offering | None:
        config = await locations.merged_config(spec.node_types[name].node_config)
        record = await _describe(gcp, locations, config)
        if not record:
            return None
        return Offering(
            node_type=name,
            market=launch_request.market(config),
            price_per_hour=price_per_hour(config, locations.region),
            resources=resources(record, launch_request.accelerators(config)),
            disks=disk_prices.describe(config),
            disks_per_hour=disk_prices.per_hour(config),
        )

    found = await run_all(offering(name) for name in sorted(spec.node_types))
    return [entry for entry in found if entry is not None]


async def _describe(
    gcp: GcpClient, locations: LaunchLocations, config: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Google's record of a machine type, from the first zone that has it; empty if none has."""
    name = launch_request.machine_type(config)
    try:
        zones = [subnet.zone for subnet in await locations.subnets(config)]
    except ShoalError:  # preflight reports it
        zones = await locations.region_zones()
    for zone in zones:
        path = f"zones/{zone}/machineTypes/{name}"
        if record := await gcp.compute("GET", path, ignore_codes=_NO_TYPE):
            return record
    return {}
